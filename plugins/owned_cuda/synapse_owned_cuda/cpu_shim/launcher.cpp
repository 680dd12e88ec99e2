/* Launches kernels on the CPU: reads requests from standard input until its end, writes every buffer back to standard
 * output after each.
 *
 * A request, little-endian: name (u32 length, bytes); grid x, y, z, block, order (i32); count of arguments (u32); each
 * argument a tag: 'i' and an i32, 'f' and a float, 'p' and a buffer (u64 length, bytes), 'n' for a null pointer. Buffers
 * are allocated to the byte, so that AddressSanitizer sees the first one past an end. ENTRIES names the kernels.
 */
#include <memory>
#include <string>

struct Argument {
    char tag = 0;
    int32_t whole = 0;
    float real = 0.0f;
    std::unique_ptr<char[]> bytes;
    uint64_t size = 0;
};

static std::vector<Argument> arguments;

template <class A> A taken(size_t i) {
    if (i >= arguments.size()) cpu::fail("the launch has fewer arguments than the kernel");
    Argument &argument = arguments[i];
    if constexpr (std::is_pointer_v<A>) {
        if (argument.tag != 'p' && argument.tag != 'n') cpu::fail("a number is given where the kernel takes a pointer");
        return reinterpret_cast<A>(argument.bytes.get());
    } else if constexpr (std::is_same_v<A, float>) {
        if (argument.tag != 'f') cpu::fail("something else is given where the kernel takes a float");
        return argument.real;
    } else {
        if (argument.tag != 'i') cpu::fail("something else is given where the kernel takes an int");
        return argument.whole;
    }
}

template <class... A, size_t... I> void call(void (*kernel)(A...), std::index_sequence<I...>) { kernel(taken<A>(I)...); }

template <class... A> std::function<void()> bound(void (*kernel)(A...)) {
    if (arguments.size() != sizeof...(A)) cpu::fail("the launch has another number of arguments than the kernel");
    return [kernel] { call(kernel, std::index_sequence_for<A...>{}); };
}

static std::function<void()> kernel_named(const std::string &name) {
#define ENTRY(entry) if (name == #entry) return bound(entry);
    ENTRIES
#undef ENTRY
    cpu::fail("there is no kernel of that name");
}

template <class A> static A read_one() {
    A value;
    if (std::fread(&value, sizeof value, 1, stdin) != 1) cpu::fail("the request is cut short");
    return value;
}

static void read_bytes(char *into, uint64_t size) {
    if (size && std::fread(into, 1, size, stdin) != size) cpu::fail("the request is cut short");
}

static void serve(uint32_t name_length) {
    std::string name(name_length, '\0');
    read_bytes(name.data(), name.size());
    int32_t numbers[5];
    for (int32_t &number : numbers) number = read_one<int32_t>();
    arguments.clear();
    arguments.resize(read_one<uint32_t>());
    for (Argument &argument : arguments) {
        argument.tag = read_one<char>();
        if (argument.tag == 'i') argument.whole = read_one<int32_t>();
        if (argument.tag == 'f') argument.real = read_one<float>();
        if (argument.tag == 'p') {
            argument.size = read_one<uint64_t>();
            argument.bytes.reset(new char[argument.size]);
            read_bytes(argument.bytes.get(), argument.size);
        }
    }
    cpu::run_grid({numbers[0], numbers[1], numbers[2]}, numbers[3], numbers[4], kernel_named(name));
    for (Argument &argument : arguments) std::fwrite(argument.bytes.get(), 1, argument.size, stdout);
    std::fflush(stdout);
}

int main() {
    uint32_t name_length;
    while (std::fread(&name_length, sizeof name_length, 1, stdin) == 1) serve(name_length);
    return 0;
}
