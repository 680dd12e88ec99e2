#version 450
// out[row, :] = table[ids[row], :]; the table is read four numbers at a time, its rows padded to that.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Ids { int ids[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 6) uniform samplerBuffer table;
layout(push_constant) uniform Push { int rows; int width; int id_offset; int quads; };

void main() {
    int row = int(gl_WorkGroupID.y);
    int quad = int(gl_GlobalInvocationID.x);
    if (quad >= quads) {
        return;
    }
    vec4 values = texelFetch(table, ids[id_offset + row] * quads + quad);
    for (int lane = 0; lane < 4; ++lane) {
        int column = 4 * quad + lane;
        if (column < width) {
            result[row * width + column] = values[lane];
        }
    }
}
