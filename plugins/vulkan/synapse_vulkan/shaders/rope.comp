#version 450
// Rotates the halves of every head by the angle of its position; the table holds cosines, then sines.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Angles { float angles[]; };
layout(set = 0, binding = 2) writeonly buffer Out { float result[]; };
layout(push_constant) uniform Push {
    int positions; int heads; int half_size;
    int x_offset; int x_text; int x_position;
    int start; int table_positions;
};

void main() {
    int pair = int(gl_GlobalInvocationID.x);
    int row = int(gl_WorkGroupID.y);
    if (pair >= heads * half_size) {
        return;
    }
    int text = row / positions;
    int position = row - text * positions;
    int head = pair / half_size;
    int place = pair - head * half_size;
    int at = head * 2 * half_size + place;
    int from = x_offset + text * x_text + position * x_position + at;
    int angle = (start + position) * half_size + place;
    float cosine = angles[angle];
    float sine = angles[table_positions * half_size + angle];
    float low = x[from];
    float high = x[from + half_size];
    int to = row * heads * 2 * half_size + at;
    result[to] = low * cosine - high * sine;
    result[to + half_size] = high * cosine + low * sine;
}
