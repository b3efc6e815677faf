// Ends the program in words on a CPU that lacks an instruction set of the other sources.
//
// Runs before any static constructor, because even those may use AVX2. For the same reason this
// file is compiled for every x86-64 CPU, and calls nothing that other files could have
// instantiated.

#include <unistd.h>

namespace {

constexpr unsigned kTextBytes = 256;

struct Text {
  char bytes[kTextBytes];
  unsigned size = 0;

  void Append(const char* words) {
    while (*words != '\0' && size < kTextBytes) bytes[size++] = *words++;
  }
};

void RequireInstructionSets(int, char**, char**) {
  __builtin_cpu_init();
  Text missing;
  const auto require = [&](bool is_there, const char* name) {
    if (!is_there) missing.Append(name);
  };
  require(__builtin_cpu_supports("avx"), " AVX");
  require(__builtin_cpu_supports("avx2"), " AVX2");
  require(__builtin_cpu_supports("fma"), " FMA");
  require(__builtin_cpu_supports("f16c"), " F16C");
  require(__builtin_cpu_supports("bmi"), " BMI1");
  require(__builtin_cpu_supports("bmi2"), " BMI2");
  require(__builtin_cpu_supports("lzcnt"), " LZCNT");
  require(__builtin_cpu_supports("movbe"), " MOVBE");
  if (missing.size == 0) return;
  missing.Append("\n");
  Text message;
  message.Append(
      "tandem: this CPU is too old. Use Intel Haswell, AMD Zen or a later one; in a virtual "
      "machine, pass the host's CPU on. Missing:");
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, message.bytes, message.size);
  written = write(STDERR_FILENO, missing.bytes, missing.size);
  _exit(1);
}

[[gnu::section(".preinit_array"),
  gnu::used]] void (*const kCheckAtStart)(int, char**, char**) = RequireInstructionSets;

}  // namespace
