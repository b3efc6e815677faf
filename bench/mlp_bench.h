#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/ops/rows.h"
#include "training/optim/optimizer.h"

namespace tandem::bench {

// Values of a = x . w_up kept for the backward pass.
enum class MlpSave { kPlain, kMask1, kRecompute };

struct MlpBenchOptions {
  int64_t d = 3584;
  int64_t ff = 14336;
  int64_t seq = 32768;
  int64_t batch = 8;
  int64_t chunk = 8192;  // tokens at a time; a multiple of 1,024, or a whole sequence
  engine::DType dtype = engine::DType::kBF16;
  MlpSave save = MlpSave::kMask1;
  double learning_rate = 0.1;
  int threads = 0;  // 0: physical cores
  int64_t steps = 3;
};

// One feed-forward layer whose first matrix is trained:
//   h = relu(x . w_up), out = h . w_down, loss = mean(out^2) over the batch,
//   w_up -= learning rate * gradient
// Each sequence runs forward through all of its chunks and then back. The kept values are those of
// one sequence.
class MlpWorkload {
 public:
  MlpWorkload(const MlpBenchOptions& options, engine::OpsContext& ops);

  double Step();  // returns the loss before the update

  // Bytes kept per sequence between its forward and backward pass, instead of a.
  int64_t kept_bytes() const { return static_cast<int64_t>(kept_.size()); }
  double flops() const;  // of a step's matrix products

  // Row-major copies for tests: [batch * seq, d], [ff, d], [d, ff].
  std::vector<float> x() const;
  std::vector<float> w_up() const;
  std::vector<float> w_down() const;

 private:
  engine::Matrix Rows(AlignedBuffer& buffer, int64_t first, int64_t rows, int64_t cols);
  void Pack(const engine::Matrix& w, AlignedBuffer& panels);
  engine::PanelMatrix Up() const;
  engine::PanelMatrix Down() const;
  void Product(int64_t first, int64_t rows);  // a for some rows of x
  void Forward(int64_t sequence, int64_t first, int64_t rows, double* sum);
  void Backward(int64_t sequence, int64_t first, int64_t rows);

  const MlpBenchOptions options_;
  engine::OpsContext& ops_;
  AlignedBuffer x_;                     // [batch * seq, d] in the compute dtype
  AlignedBuffer up_master_, up_low_;    // [ff, d]; split in bf16
  AlignedBuffer up_panels_, gradient_;  // gradient: f32
  AlignedBuffer down_, down_panels_;    // [d, ff]
  AlignedBuffer kept_;                  // per sequence: a in f32, or a bit per element
  AlignedBuffer dout_;                  // [seq, d] in the compute dtype
  AlignedBuffer wide_;                  // per chunk [chunk, ff]: a, then dh, in f32
  AlignedBuffer wide_gradient_;         // da in f32
  AlignedBuffer wide_rounded_;          // h, then da, in the compute dtype
  AlignedBuffer out_;                   // [chunk, d] f32
  training::ParameterState up_;
  int64_t n_steps_ = 0;
};

// `tandem bench mlp`: runs steps and prints their rate against the roof, and the bytes kept.
int RunMlpBench(std::ostream& out, const MlpBenchOptions& options);

}  // namespace tandem::bench
