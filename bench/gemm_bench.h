#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace tandem::bench {

// `tandem bench gemm` and `tandem bench roof`: the speed of the matrix kernels on this machine, and
// its limits, which are measured again before each group of cases (protocol in bench/README.md).
struct GemmBenchOptions {
  struct Shape {
    int64_t k = 0;
    int64_t n = 0;
  };
  int threads = 0;       // 0: one per physical core
  double seconds = 0.7;  // per case
  std::vector<Shape> shapes = {{2304, 9216}, {2048, 8192}};
  std::vector<int64_t> rows = {1, 8, 32, 512};
  // Weights cycle over at least this much memory, so that they are not cached.
  int64_t cycle_bytes = 400'000'000;
  std::vector<std::string> types = {"bf16", "f32",  "int8", "int4",
                                    "int6", "q4_k", "mxfp4"};  // of the weights
  bool gradients = true;  // also measures both gradient products, at training sizes
};

// Limits of this machine for the active kernel table, per second, of all threads together. A fused
// multiply-add counts as two operations.
struct Roof {
  double f32_flops = 0;
  double bf16_flops = 0;  // bf16 products as the table computes them
  double int8_ops = 0;    // int8 products, likewise
  double read_bytes = 0;  // memory read
};
// Takes about four times `seconds`, and 1 GiB of memory.
Roof MeasureRoof(int threads, double seconds);

// Both print a table and return 0.
int RunRoofBench(std::ostream& out, const GemmBenchOptions& options);
int RunGemmBench(std::ostream& out, const GemmBenchOptions& options);

}  // namespace tandem::bench
