#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/formats/model_dir.h"
#include "engine/model/families/family.h"
#include "engine/ops/ops_context.h"
#include "training/optim/optimizer.h"
#include "training/spec/fresh_init.h"

namespace tandem::training {

// Throws kUnsupported when the files store any of these weights in integer blocks. The message
// names the first of them and ends with `why` ("which ...").
void RefuseBlocks(const engine::ModelDir& dir, const std::vector<engine::WeightSpec>& specs,
                  const std::string& why);

// The weight as the optimiser sees it.
TensorForm FormOf(const engine::WeightSpec& spec);

// This rank's share of the moments when ranks divide them: an equal, consecutive part of the flat
// gradient.
struct MomentShard {
  int rank = 0;
  int size = 1;
};

// All weights of a model in training. Owned and used by the training thread. Holds:
// - row-major masters [n, k]: f32, or split into a bf16 high and an i16 low half when dtype is
//   bf16;
// - f32 gradients and Adam's moments of the trained weights;
// - panels and f32 vectors, which the program computes with. Repack rebuilds them from the masters.
class ParameterStore {
 public:
  // `trained` has one entry per weight; empty: all are trained. The optimiser decides which moments
  // exist.
  ParameterStore(std::vector<engine::WeightSpec> specs, engine::DType dtype,
                 std::vector<bool> trained, const OptimizerSpec& optimizer = {},
                 MomentShard shard = {});

  // Draws fresh weights, which depend only on the seed and each weight's name. Biases are 0. Norm
  // scales are 1 less the offset that the model adds to them. With kNormal all others are normal
  // with standard deviation `std_dev`. Projections that end a residual branch (names with o_proj,
  // down_proj, c_proj, mha.out, linear2) use std_dev / sqrt(2 n_layers). kXavierUniform ignores
  // `std_dev` and `n_layers`; see FreshInit.
  void InitFresh(uint64_t seed, double std_dev, int64_t n_layers,
                 FreshInit init = FreshInit::kNormal);
  // Loads a Hugging Face directory. Throws kDataLoss naming a missing or misshapen tensor.
  void LoadFrom(const engine::ModelDir& dir);
  // Loads one file by the weights' own names: an adapter.
  void LoadFrom(const engine::SafetensorsFile& file, const std::string& source);

  // Rebuilds panels and vectors from the masters. Call it after every change of the masters.
  void Repack(engine::OpsContext& ops);
  void ZeroGradients(engine::OpsContext& ops);
  // The gradients of all trained weights in one piece, with zeros between tensors. Begins at the
  // first weight.
  std::span<float> flat_gradient() { return {gradient_.as<float>(), gradient_.size() / 4}; }
  const MomentShard& shard() const { return shard_; }
  // Number of elements of each rank's part of the flat gradient.
  int64_t shard_elements() const {
    return static_cast<int64_t>(flat_gradient_size()) / shard_.size;
  }
  // The f32 masters of elements [begin, begin + n) of the flat gradient's order, as raw bits. Zeros
  // between tensors.
  void PackMasters(int64_t begin, std::span<uint32_t> bits) const;
  void UnpackMasters(int64_t begin, std::span<const uint32_t> bits);

  // The moments of one weight, of which a rank has a part.
  struct MomentPart {
    std::string name;  // as in OptimizerTensors
    engine::DType dtype = engine::DType::kF32;
    std::vector<int64_t> shape;
    std::span<std::byte> own;         // this rank's part
    std::vector<int64_t> part_bytes;  // by rank
  };
  std::vector<MomentPart> MomentParts();
  // Where weight i's gradient lies in it; both ends equal for a frozen weight.
  std::pair<int64_t, int64_t> FlatRange(size_t i) const;

  // The moving average of the trained masters, which exists with OptimizerSpec::ema_decay. It
  // begins at the masters; every update adds 1 - decay of them: ema = decay ema + (1 - decay) w, in
  // f32.
  bool has_average() const { return ema_decay_ > 0; }
  void ResetAverage();
  void UpdateAverage(engine::OpsContext& ops);
  // Exchanges masters and average. A second call restores both, bit for bit.
  void SwapAverage();

  size_t size() const { return specs_.size(); }
  const std::vector<engine::WeightSpec>& specs() const { return specs_; }
  engine::DType dtype() const { return dtype_; }
  const std::vector<bool>& trained() const { return trained_; }
  const engine::Weights& weights() const { return weights_; }
  std::span<float* const> gradients() const { return gradients_; }
  // The trained parameters, for the optimiser. With a shard: the parts of them whose moments this
  // rank has.
  std::span<const ParameterState> states() const { return states_; }
  int64_t parameter_count() const;
  int64_t bytes() const { return bytes_; }
  double Norm() const;  // L2 norm of all masters

  // Weight i as f32, [n, k].
  std::vector<float> Master(size_t i) const;
  void SetMaster(size_t i, std::span<const float> values);

  // Weight i in the layout and shape of its source, for export. Its dtype is the compute dtype;
  // split masters export the high half without rounding again.
  std::vector<std::byte> ExportSource(size_t i) const;
  void ImportSource(size_t i, const engine::ConstTensorView& tensor);

  // Tensors that a checkpoint stores in addition to ExportSource, row-major [n, k]. The views
  // borrow.
  // - "m/<name>", "v/<name>": the optimiser's moments. 8-bit moments are codes, with
  //   "m_scales/<name>" and "v_scales/<name>".
  // - "low/<name>": the low halves of split masters.
  // - "ema/<name>": the moving average.
  // With a shard, the moments are absent (MomentParts).
  std::vector<engine::NamedTensor> OptimizerTensors() const;
  // Calls `visit` with the bytes of every buffer that training changes and all ranks share:
  // masters, and without shards moments.
  void VisitState(const std::function<void(std::span<std::byte>)>& visit);
  // Copies those tensors back. Throws kDataLoss naming a missing or misshapen tensor.
  void RestoreOptimizer(const engine::SafetensorsFile& file, const std::string& source);

 private:
  struct Parameter {
    int64_t elements = 0;
    AlignedBuffer master;  // f32, or the bf16 high half
    AlignedBuffer low;     // i16
    AlignedBuffer m, v;    // f32, or codes
    AlignedBuffer m_scales, v_scales;
    AlignedBuffer ema;           // f32
    int64_t gradient_begin = 0;  // in the flat gradient
    AlignedBuffer panels;
    AlignedBuffer vector;  // f32
  };

  size_t flat_gradient_size() const { return gradient_.size() / sizeof(float); }
  // Elements of weight i in the part of `rank`, relative to the weight.
  std::pair<int64_t, int64_t> OwnRange(size_t i, int rank) const;
  template <class Visit>
  void VisitFlat(int64_t begin, int64_t end, const Visit& visit) const;
  void TakeGradients();
  // Allocates the moments of state->elements elements.
  void TakeMoments(const MomentLayout& layout, Parameter* p, ParameterState* state);
  void Load(size_t i, const engine::ConstTensorView* tensor, const std::string& source);
  bool split() const { return dtype_ == engine::DType::kBF16; }

  std::vector<engine::WeightSpec> specs_;
  engine::DType dtype_;
  std::vector<bool> trained_;
  double ema_decay_;
  MomentShard shard_;
  std::vector<MomentLayout> layouts_;  // by weight
  std::vector<Parameter> parameters_;
  engine::Weights weights_;
  AlignedBuffer gradient_;  // of all trained weights
  std::vector<float*> gradients_;
  std::vector<ParameterState> states_;
  int64_t bytes_ = 0;
};

}  // namespace tandem::training
