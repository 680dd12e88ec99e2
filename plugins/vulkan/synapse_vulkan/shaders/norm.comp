#version 450
// Normalisation of rows, one workgroup a row: layer norm, rms norm or the Euclidean norm, of x or of x + r. A row may
// be cut into parts of `width` that are normalised each by itself (heads).
layout(local_size_x = 32) in;
const int LAYER = 0;
const int RMS = 1;
const int EUCLID = 2;
layout(constant_id = 0) const int KIND = LAYER;
layout(constant_id = 1) const bool ADD = false;
layout(constant_id = 2) const bool BIAS = false;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer R { float added[]; };
layout(set = 0, binding = 2) readonly buffer W { float weight[]; };
layout(set = 0, binding = 3) readonly buffer B { float bias[]; };
layout(set = 0, binding = 4) writeonly buffer Sum { float total[]; };
layout(set = 0, binding = 5) writeonly buffer Out { float result[]; };
layout(push_constant) uniform Push { int width; int x_offset; int x_stride; int r_offset; int r_stride; float eps; };

shared float partial[32];

float element(int column) {
    int row = int(gl_WorkGroupID.y);
    int at = int(gl_WorkGroupID.z) * width + column;
    float value = x[x_offset + row * x_stride + at];
    return ADD ? value + added[r_offset + row * r_stride + at] : value;
}

// The sum over the workgroup, in one order for every lane.
float summed(float mine) {
    barrier();
    partial[gl_LocalInvocationIndex] = mine;
    barrier();
    float sum = 0.0;
    for (int lane = 0; lane < 32; ++lane) {
        sum += partial[lane];
    }
    return sum;
}

void main() {
    int to = int(gl_WorkGroupID.y * gl_NumWorkGroups.z + gl_WorkGroupID.z) * width;
    int first = int(gl_LocalInvocationIndex);
    float mean = 0.0;
    if (KIND == LAYER) {
        float sum = 0.0;
        for (int column = first; column < width; column += 32) {
            sum += element(column);
        }
        mean = summed(sum) / float(width);
    }
    float squares = 0.0;
    for (int column = first; column < width; column += 32) {
        float centred = element(column) - mean;
        squares = fma(centred, centred, squares);
    }
    float square = summed(squares);
    float size = KIND == EUCLID ? sqrt(square) : sqrt(square / float(width) + eps);
    if (KIND == EUCLID && square == 0.0) {
        size = 1.0;
    }
    for (int column = first; column < width; column += 32) {
        float value = element(column);
        if (ADD) {
            total[to + column] = value;
        }
        float normed = (value - mean) / size;
        if (KIND != EUCLID) {
            normed *= weight[column];
        }
        if (BIAS) {
            normed += bias[column];
        }
        result[to + column] = normed;
    }
}
