#version 450
// out[row, :] = table[ids[row], :]; the table is read four numbers at a time, its rows padded to that. A table larger than
// a texel buffer comes in parts, one dispatch each, of `part_rows` rows from row `first`.
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer Ids { int ids[]; };
layout(set = 0, binding = 1) writeonly buffer Out { float result[]; };
layout(set = 0, binding = 6) uniform samplerBuffer table;
layout(push_constant) uniform Push { int rows; int width; int id_offset; int quads; int first; int part_rows; };

void main() {
    int row = int(gl_WorkGroupID.y);
    int quad = int(gl_GlobalInvocationID.x);
    int taken = ids[id_offset + row] - first;
    if (quad >= quads || taken < 0 || taken >= part_rows) {
        return;
    }
    vec4 values = texelFetch(table, taken * quads + quad);
    for (int lane = 0; lane < 4; ++lane) {
        int column = 4 * quad + lane;
        if (column < width) {
            result[row * width + column] = values[lane];
        }
    }
}
