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
#include "training/program/tensor_split.h"
#include "training/spec/fresh_init.h"
#include "training/step/paged_memory.h"
#include "training/step/tensor_files.h"

namespace tandem::training {

// Throws kUnsupported when the files store any of these weights in integer blocks. The message
// names the first of them and ends with `why` ("which ...").
void RefuseBlocks(const engine::ModelDir& dir, const std::vector<engine::WeightSpec>& specs,
                  const std::string& why);

// The name up to its first number, "model.layers.3"; empty for weights of no layer.
std::string_view LayerOf(std::string_view name);

// The weight as the optimiser sees it.
TensorForm FormOf(const engine::WeightSpec& spec);

// This rank's share of the state when ranks divide it: an equal, consecutive part of each unit of
// the flat gradient.
struct StateShard {
  int rank = 0;
  int size = 1;
  // Whether ranks divide masters, gradients and weights too (FSDP), and not only moments (ZeRO-1).
  bool of_weights = false;
};

// All weights of a model in training. Owned and used by the training thread. Holds:
// - row-major masters [n, k]: f32, or split into a bf16 high and an i16 low half when dtype is
//   bf16;
// - f32 gradients and Adam's moments of the trained weights;
// - panels and f32 vectors, which the program computes with. Repack rebuilds them from the masters.
//
// With a tensor split (training/program/tensor_split.h) all these are of this rank's parts of the
// weights; loading and exporting take whole ones. With a shard of the weights (shares_weights) a
// rank holds only its part of all these of trained weights. Gradients and panels have room for the
// others' parts, which exist for as long as a unit is in use (sharded_weights.h).
class ParameterStore {
 public:
  // `trained` has one entry per weight; empty: all are trained. The optimiser decides which moments
  // exist.
  ParameterStore(std::vector<engine::WeightSpec> specs, engine::DType dtype,
                 std::vector<bool> trained, const OptimizerSpec& optimizer = {},
                 StateShard shard = {}, TensorSplit tensor = {});

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

  // Rebuilds panels and vectors from the masters. Call it after every change of the masters. With
  // shares_weights only those of frozen weights.
  void Repack(engine::OpsContext& ops);
  void ZeroGradients(engine::OpsContext& ops);
  // The gradients of all trained weights in one piece, with zeros between tensors. Begins at the
  // first weight.
  std::span<float> flat_gradient() { return {flat_, static_cast<size_t>(flat_elements_)}; }
  const StateShard& shard() const { return shard_; }
  bool shares_weights() const { return shard_.of_weights && shard_.size > 1; }
  // Number of elements of each rank's part of the flat gradient.
  int64_t shard_elements() const { return flat_elements_ / shard_.size; }

  // Consecutive weights whose parts ranks exchange together. With shares_weights those of a layer,
  // and those between layers; otherwise one unit has all weights.
  struct Unit {
    size_t first = 0;  // weights [first, last)
    size_t last = 0;
    int64_t begin = 0;          // of the flat gradient
    int64_t end = 0;            // equal to begin when nothing is trained
    int64_t weights_begin = 0;  // bytes of the program's weights
    int64_t weights_end = 0;

    int64_t elements() const { return end - begin; }
  };
  const std::vector<Unit>& units() const { return units_; }
  // This rank's part of a unit's gradient.
  std::span<float> OwnGradient(const Unit& unit);
  // The following need shares_weights.
  std::span<float> GradientOf(const Unit& unit);
  std::span<std::byte> WeightsOf(const Unit& unit);
  // Zeroes the other ranks' parts and frees their memory. Any thread.
  void DropGradientOf(const Unit& unit);
  void DropWeightsOf(const Unit& unit);
  // Bytes of a unit's masters as its weights need them: [rank][part] in the compute dtype, or with
  // both halves if some weight is used with all its bits (ExportDType).
  int64_t MasterBytesOf(const Unit& unit) const;
  // Writes this rank's part of them.
  void PackMastersOf(const Unit& unit, std::span<std::byte> all) const;
  // Rebuilds a unit's panels and vectors from all parts.
  void RepackUnit(engine::OpsContext& ops, const Unit& unit, std::span<const std::byte> all);
  // Sums of blocks (SquaredBlocks of states()) at the blocks' places in this rank's parts of all
  // units, zero where a part has no block.
  std::vector<double> InUnits(const std::vector<double>& blocks) const;
  // The part of rank `rank` of weight i: its first element and the end.
  std::pair<int64_t, int64_t> OwnRange(size_t i, int rank) const;
  // The f32 masters of elements [begin, begin + n) of the flat gradient's order, as raw bits. Zeros
  // between tensors.
  void PackMasters(int64_t begin, std::span<uint32_t> bits) const;
  void UnpackMasters(int64_t begin, std::span<const uint32_t> bits);

  // The moments of one weight, of which a rank has a part. With a tensor split also the low halves
  // and the average.
  struct MomentPart {
    std::string name;  // as in OptimizerTensors
    size_t weight = 0;
    engine::DType dtype = engine::DType::kF32;
    std::vector<int64_t> shape;       // of the whole
    std::span<std::byte> own;         // this rank's part
    std::vector<int64_t> part_bytes;  // by rank of the shard; one where ranks have the same
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
  // How these are parts of the model's own weights, and those.
  const TensorSplit& tensor() const { return tensor_; }
  const std::vector<engine::WeightSpec>& whole_specs() const {
    return tensor_.is_split() ? tensor_.whole_specs : specs_;
  }
  engine::DType dtype() const { return dtype_; }
  const std::vector<bool>& trained() const { return trained_; }
  const engine::Weights& weights() const { return weights_; }
  std::span<float* const> gradients() const { return gradients_; }
  // The trained parameters, for the optimiser. With a shard: the parts of them whose moments this
  // rank has.
  std::span<const ParameterState> states() const { return states_; }
  size_t weight_of_state(size_t state) const { return weights_of_states_[state]; }
  int64_t parameter_count() const;  // of the whole weights
  int64_t bytes() const { return bytes_; }

  // Weight i as f32, [n, k]. With shares_weights only this rank's part of it.
  std::vector<float> Master(size_t i) const;
  // Takes the whole weight and keeps this rank's part.
  void SetMaster(size_t i, std::span<const float> values);

  // Weight i in the layout and shape of its source, for export. Its dtype is ExportDType
  // (export_dtype.h). In bf16, split masters export the high half without rounding again.
  // REQUIRES: no tensor split.
  std::vector<std::byte> ExportSource(size_t i) const;
  // The same from the bytes of a whole master in ExportDType, [n, k].
  std::vector<std::byte> ExportSource(size_t i, std::span<const std::byte> master) const;
  // This rank's part of a master in the compute dtype: with shares_weights OwnRange of it.
  std::span<const std::byte> MasterPart(size_t i) const;
  void ImportSource(size_t i, const engine::ConstTensorView& tensor);

  // Tensors that a checkpoint stores in addition to ExportSource, row-major [n, k]. The views
  // borrow.
  // - "m/<name>", "v/<name>": the optimiser's moments. 8-bit moments are codes, with
  //   "m_scales/<name>" and "v_scales/<name>".
  // - "low/<name>": the low halves of split masters.
  // - "ema/<name>": the moving average.
  // With a shard, the moments are absent (MomentParts); with shares_weights or a tensor split all
  // are.
  std::vector<engine::NamedTensor> OptimizerTensors() const;
  // Calls `visit` with the bytes of every buffer that training changes and all ranks share:
  // masters, and without shards moments. Not with shares_weights or a tensor split.
  void VisitState(const std::function<void(std::span<std::byte>)>& visit);
  // Copies those tensors back. Throws kDataLoss naming a missing or misshapen tensor.
  void RestoreOptimizer(const TensorFiles& files, const std::string& source);

 private:
  struct Parameter {
    int64_t elements = 0;
    int64_t own_begin = 0;  // elements of which this rank has the master: all, or its part
    int64_t own_elements = 0;
    AlignedBuffer master;  // f32, or the bf16 high half
    AlignedBuffer low;     // i16
    AlignedBuffer m, v;    // f32, or codes
    AlignedBuffer m_scales, v_scales;
    AlignedBuffer ema;           // f32
    int64_t gradient_begin = 0;  // in the flat gradient
    AlignedBuffer panels;
    AlignedBuffer vector;  // f32
  };

  template <class Visit>
  void VisitFlat(int64_t begin, int64_t end, const Visit& visit) const;
  void MakeUnits();
  void TakeGradients();
  // Reserves the program's weights of all units.
  void ReserveWeights();
  // `low`: the low halves of a split master; read only for weights that use all its bits.
  void RepackWeight(engine::OpsContext& ops, size_t i, const std::byte* master, const int16_t* low);
  bool UsesAllBits(size_t i) const;
  bool NeedsLowHalves(const Unit& unit) const;
  void SetOwnMaster(size_t i, std::span<const float> values);
  // Allocates the moments of state->elements elements.
  void TakeMoments(const MomentLayout& layout, Parameter* p, ParameterState* state);
  void Load(size_t i, const engine::ConstTensorView* tensor, const std::string& source);
  bool split() const { return dtype_ == engine::DType::kBF16; }

  std::vector<engine::WeightSpec> specs_;
  engine::DType dtype_;
  std::vector<bool> trained_;
  double ema_decay_;
  StateShard shard_;
  TensorSplit tensor_;
  std::vector<MomentLayout> layouts_;  // by weight
  std::vector<Parameter> parameters_;
  engine::Weights weights_;
  std::vector<Unit> units_;
  std::vector<size_t> unit_of_;  // by weight
  AlignedBuffer gradient_;       // of all trained weights; empty with shares_weights
  PagedMemory paged_gradient_;   // likewise, with shares_weights
  PagedMemory paged_weights_;    // panels and vectors of trained weights, with shares_weights
  float* flat_ = nullptr;
  int64_t flat_elements_ = 0;
  std::vector<float*> gradients_;
  std::vector<ParameterState> states_;
  std::vector<size_t> weights_of_states_;
  int64_t bytes_ = 0;
};

}  // namespace tandem::training
