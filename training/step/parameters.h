#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/base/aligned_buffer.h"
#include "engine/formats/model_dir.h"
#include "engine/model/family.h"
#include "engine/ops/ops_context.h"
#include "training/optim/optimizer.h"
#include "training/spec/fresh_init.h"

namespace tandem::training {

// Throws kUnsupported naming the first of the weights that the files keep in blocks of integers,
// saying why ("which ...") that will not do.
void RefuseBlocks(const engine::ModelDir& dir, const std::vector<engine::WeightSpec>& specs,
                  const std::string& why);

// All weights of a model in training: row-major masters [n, k] (f32, or split into a bf16 high and
// an i16 low half, DESIGN "Decided numerics" 7), Adam's moments and f32 gradients of the trained
// ones, and what the program computes with: panels and f32 vectors, made anew from the masters by
// Repack. Owned and used by the training thread.
class ParameterStore {
 public:
  // `trained` per weight; empty: all. The optimiser says which moments there are.
  ParameterStore(std::vector<engine::WeightSpec> specs, engine::DType dtype,
                 std::vector<bool> trained, const OptimizerSpec& optimizer = {});

  // Fresh weights, a function of the seed and each weight's name alone. Norm scales 1, biases 0,
  // everything else normal with this standard deviation; projections that end a residual branch
  // (names containing o_proj, down_proj, c_proj, mha.out, linear2) divided by sqrt(2 n_layers).
  void InitFresh(uint64_t seed, double std_dev, int64_t n_layers,
                 FreshInit init = FreshInit::kNormal);
  // From a Hugging Face directory. Throws kDataLoss naming a tensor that is missing or misshapen.
  void LoadFrom(const engine::ModelDir& dir);
  // From one file, by the weights' own names: an adapter.
  void LoadFrom(const engine::SafetensorsFile& file, const std::string& source);

  // Panels and vectors from the masters; after every change of them.
  void Repack(engine::OpsContext& ops);
  void ZeroGradients(engine::OpsContext& ops);

  size_t size() const { return specs_.size(); }
  const std::vector<engine::WeightSpec>& specs() const { return specs_; }
  engine::DType dtype() const { return dtype_; }
  const std::vector<bool>& trained() const { return trained_; }
  const engine::Weights& weights() const { return weights_; }
  std::span<float* const> gradients() const { return gradients_; }
  // The trained parameters, for the optimiser.
  std::span<const ParameterState> states() const { return states_; }
  int64_t parameter_count() const;
  int64_t bytes() const { return bytes_; }
  double Norm() const;  // of all masters

  // The value of weight i as f32, [n, k].
  std::vector<float> Master(size_t i) const;
  void SetMaster(size_t i, std::span<const float> values);

  // Weight i in the layout and shape of its source, in the compute dtype: what is exported. The
  // high half as it is, never rounded again.
  std::vector<std::byte> ExportSource(size_t i) const;
  void ImportSource(size_t i, const engine::ConstTensorView& tensor);

  // What a checkpoint keeps besides ExportSource: "m/<name>", "v/<name>" (of 8-bit moments codes,
  // with "m_scales/<name>", "v_scales/<name>") and, with split masters, "low/<name>", row-major
  // [n, k]; those that the optimiser has. The views borrow.
  std::vector<engine::NamedTensor> OptimizerTensors() const;
  // Copies them back; throws kDataLoss naming a tensor that is missing or misshapen.
  void RestoreOptimizer(const engine::SafetensorsFile& file, const std::string& source);

 private:
  struct Parameter {
    int64_t elements = 0;
    AlignedBuffer master;  // f32, or bf16 high half
    AlignedBuffer low;     // i16
    AlignedBuffer m, v;    // f32, or codes
    AlignedBuffer m_scales, v_scales;
    AlignedBuffer gradient;
    AlignedBuffer panels;
    AlignedBuffer vector;  // f32
  };

  void TakeMoments(const MomentLayout& layout, Parameter* p, ParameterState* state);
  void Load(size_t i, const engine::ConstTensorView* tensor, const std::string& source);
  bool split() const { return dtype_ == engine::DType::kBF16; }

  std::vector<engine::WeightSpec> specs_;
  engine::DType dtype_;
  std::vector<bool> trained_;
  std::vector<Parameter> parameters_;
  engine::Weights weights_;
  std::vector<float*> gradients_;
  std::vector<ParameterState> states_;
  int64_t bytes_ = 0;
};

}  // namespace tandem::training
