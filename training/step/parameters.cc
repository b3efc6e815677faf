#include "training/step/parameters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

#include "engine/base/check.h"
#include "engine/formats/stored/stored_tensor.h"
#include "engine/io/fnv1a.h"
#include "engine/model/find_weight.h"
#include "engine/tensor/split_mix.h"
#include "training/lora/name_pattern.h"
#include "training/step/export_dtype.h"

namespace tandem::training {
namespace {

using engine::Bf16;
using engine::DType;
using engine::SourceLayout;
using engine::WeightKind;
using engine::WeightSpec;

constexpr int64_t kGradientAlign = 16;               // floats: a tensor begins at a cache line
constexpr int64_t kZeroedAtOnce = int64_t{1} << 22;  // bytes

// The i-th standard normal of a stream (Box-Muller), independent of all others.
double Normal(uint64_t stream, uint64_t i) {
  const uint64_t a = engine::SplitMix64(stream ^ engine::SplitMix64(2 * i));
  const uint64_t b = engine::SplitMix64(stream ^ engine::SplitMix64(2 * i + 1));
  const double u = (static_cast<double>(a >> 11) + 1) * 0x1p-53;  // (0, 1]
  const double w = static_cast<double>(b >> 11) * 0x1p-53;        // [0, 1)
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * w);
}

// The i-th uniform number of a stream, in [-1, 1).
double Uniform(uint64_t stream, uint64_t i) {
  return static_cast<double>(engine::SplitMix64(stream ^ engine::SplitMix64(2 * i)) >> 11) *
             0x1p-52 -
         1;
}

// Half the width of a matrix's uniform distribution; for other weights the standard deviation.
double XavierScale(const WeightSpec& spec) {
  return spec.kind == WeightKind::kMatrix ? std::sqrt(6.0 / static_cast<double>(spec.n + spec.k))
                                          : 1 / std::sqrt(static_cast<double>(spec.k));
}

bool EndsResidualBranch(std::string_view name) {
  for (const std::string_view part : {"o_proj", "down_proj", "c_proj", "mha.out", "linear2"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

bool IsBias(std::string_view name) { return name.ends_with("bias"); }

// For each weight, whether weight decay applies.
std::vector<bool> Decays(const OptimizerSpec& optimizer, const std::vector<WeightSpec>& specs) {
  std::vector<bool> decays;
  decays.reserve(specs.size());
  for (const WeightSpec& spec : specs) decays.push_back(optimizer.decay_exclude || spec.decays);
  if (!optimizer.decay_exclude) return decays;
  for (const std::string& text : *optimizer.decay_exclude) {
    const NamePattern excluded("train.optimizer.decay_exclude", text);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (excluded.IsIn(specs[i].name)) decays[i] = false;
    }
  }
  return decays;
}

}  // namespace

TensorForm FormOf(const WeightSpec& spec) {
  return {.rows = spec.n,
          .columns = spec.k,
          .is_matrix = spec.kind == WeightKind::kMatrix,
          .is_of_layer = !LayerOf(spec.name).empty()};
}

ParameterStore::ParameterStore(std::vector<WeightSpec> specs, DType dtype,
                               std::vector<bool> trained, const OptimizerSpec& optimizer,
                               StateShard shard, TensorSplit tensor)
    : specs_(std::move(specs)),
      dtype_(dtype),
      trained_(std::move(trained)),
      ema_decay_(optimizer.ema_decay),
      shard_(shard),
      tensor_(std::move(tensor)) {
  TANDEM_CHECK(!tensor_.is_split() || tensor_.weights.size() == specs_.size());
  TANDEM_CHECK(dtype == DType::kF32 || dtype == DType::kBF16);
  if (trained_.empty()) trained_.assign(specs_.size(), true);
  TANDEM_CHECK(trained_.size() == specs_.size());

  const std::vector<bool> decays = Decays(optimizer, specs_);
  parameters_.resize(specs_.size());
  weights_.resize(specs_.size());
  gradients_.assign(specs_.size(), nullptr);
  const auto take = [this](size_t bytes) {
    bytes_ += static_cast<int64_t>(bytes);
    return AlignedBuffer(bytes);
  };
  layouts_.resize(specs_.size());
  MakeUnits();
  TakeGradients();
  if (shares_weights()) ReserveWeights();
  for (size_t i = 0; i < specs_.size(); ++i) {
    const WeightSpec& spec = specs_[i];
    Parameter& p = parameters_[i];
    const auto [begin, end] = OwnRange(i, shard_.rank);
    const bool is_part = shares_weights() && trained_[i];
    p.own_begin = is_part ? begin : 0;
    p.own_elements = is_part ? end - begin : p.elements;
    const auto elements = static_cast<size_t>(p.own_elements);
    p.master = take(elements * engine::DTypeBytes(dtype));
    if (split()) p.low = take(elements * sizeof(int16_t));

    engine::Weight& weight = weights_[i];
    weight.index = static_cast<int32_t>(i);
    weight.spec = &specs_[i];
    if (is_part) {
      // ReserveWeights has set the place of the panels, or of the vector.
    } else if (spec.kind == WeightKind::kVector) {
      p.vector = take(elements * sizeof(float));
      weight.vector = p.vector.as<float>();
    } else {
      p.panels = take(static_cast<size_t>(engine::PanelBytes(dtype, spec.n, spec.k)));
      weight.panels = {p.panels.data(), dtype, spec.n, spec.k};
    }

    if (!trained_[i]) continue;
    if (has_average()) p.ema = take(elements * sizeof(float));
    const TensorForm form = FormOf(spec);
    layouts_[i] = MomentsOf(optimizer, form);
    if (begin == end) continue;
    ParameterState state;
    state.elements = end - begin;
    state.decays = decays[i];
    state.columns = spec.k;
    state.orthogonalised = IsOrthogonalised(optimizer, form);
    if (split()) {
      state.high = p.master.as<Bf16>() + (begin - p.own_begin);
      state.low = p.low.as<int16_t>() + (begin - p.own_begin);
    } else {
      state.master = p.master.as<float>() + (begin - p.own_begin);
    }
    TakeMoments(layouts_[i], &p, &state);
    state.gradient = gradients_[i] + begin;
    states_.push_back(state);
    weights_of_states_.push_back(i);
  }
}

void ParameterStore::TakeGradients() {
  // With shards no block of the norm or of coded moments crosses the border of a part.
  const int64_t align = shard_.size > 1 ? kNormBlock : kGradientAlign;
  const auto rounded = [](int64_t n, int64_t to) { return (n + to - 1) / to * to; };
  int64_t end = 0;
  for (Unit& unit : units_) {
    unit.begin = end;
    for (size_t i = unit.first; i < unit.last; ++i) {
      Parameter& p = parameters_[i];
      p.elements = specs_[i].n * specs_[i].k;
      p.gradient_begin = end;
      if (!trained_[i]) continue;
      end += rounded(p.elements, align);
      if (!shares_weights()) bytes_ += p.elements * static_cast<int64_t>(sizeof(float));
    }
    end = rounded(end, align * shard_.size);
    unit.end = end;
  }
  flat_elements_ = end;
  const int64_t bytes = end * static_cast<int64_t>(sizeof(float));
  if (shares_weights()) {
    bytes_ += bytes / shard_.size;
    paged_gradient_ = PagedMemory(bytes);
    flat_ = reinterpret_cast<float*>(paged_gradient_.data());
  } else {
    gradient_ = AlignedBuffer(static_cast<size_t>(bytes));
    flat_ = gradient_.as<float>();
  }
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (trained_[i]) gradients_[i] = flat_ + parameters_[i].gradient_begin;
  }
}

void ParameterStore::TakeMoments(const MomentLayout& layout, Parameter* p, ParameterState* state) {
  const auto n_scales = static_cast<size_t>(MomentBlocks(state->elements));
  const auto take = [&](int64_t elements, AlignedBuffer* moment, AlignedBuffer* scales,
                        float** floats, uint8_t** codes, float** scale) {
    *moment = AlignedBuffer(static_cast<size_t>(elements) *
                            (layout.coded ? sizeof(uint8_t) : sizeof(float)));
    if (!layout.coded) {
      *floats = moment->as<float>();
      return;
    }
    *scales = AlignedBuffer(n_scales * sizeof(float));
    *codes = moment->as<uint8_t>();
    *scale = scales->as<float>();
  };
  if (layout.first) {
    take(state->elements, &p->m, &p->m_scales, &state->m, &state->m_codes, &state->m_scales);
  }
  if (layout.second) {
    take(SecondMomentElements(layout, state->elements), &p->v, &p->v_scales, &state->v,
         &state->v_codes, &state->v_scales);
  }
  state->factored = layout.factors > 0;
  bytes_ += MomentBytes(layout, state->elements);
}

void ParameterStore::InitFresh(uint64_t seed, double std_dev, int64_t n_layers, FreshInit init) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const WeightSpec& spec = whole_specs()[i];
    std::vector<float> values(static_cast<size_t>(spec.n * spec.k));
    if (spec.kind == WeightKind::kVector) {
      // A norm begins as the identity: the stored scale plus the offset added in use is 1.
      values.assign(values.size(), IsBias(spec.name) ? 0.0f : 1.0f - spec.offset);
    } else {
      const uint64_t stream = engine::SplitMix64(seed ^ engine::Fnv1a::Of(spec.name));
      const bool uniform = init == FreshInit::kXavierUniform && spec.kind == WeightKind::kMatrix;
      const double scale = init == FreshInit::kXavierUniform ? XavierScale(spec)
                           : EndsResidualBranch(spec.name)
                               ? std_dev / std::sqrt(2.0 * static_cast<double>(n_layers))
                               : std_dev;
      for (size_t e = 0; e < values.size(); ++e) {
        values[e] = static_cast<float>(scale * (uniform ? Uniform(stream, e) : Normal(stream, e)));
      }
    }
    SetMaster(i, values);
  }
}

void RefuseBlocks(const engine::ModelDir& dir, const std::vector<WeightSpec>& specs,
                  const std::string& why) {
  for (const WeightSpec& spec : specs) {
    const auto tensor = engine::FindWeight(dir, spec);
    if (!tensor || tensor->encoding == engine::Encoding::kPlain) continue;
    throw Error(ErrorCode::kUnsupported,
                dir.name() + ": tensor " + spec.name + " has quantised blocks (" +
                    std::string(engine::EncodingName(tensor->encoding)) + "), " + why +
                    ": train from the F32, F16 or BF16 file of the model");
  }
}

void ParameterStore::LoadFrom(const engine::ModelDir& dir) {
  RefuseBlocks(dir, whole_specs(), "which cannot be trained");
  for (size_t i = 0; i < specs_.size(); ++i) {
    const auto tensor = engine::FindWeight(dir, whole_specs()[i]);
    if (!tensor || tensor->IsAsAsked()) {
      Load(i, tensor ? &tensor->view : nullptr, dir.name());
    } else {
      const std::vector<float> values = engine::DecodeTensor(*tensor);
      const engine::ConstTensorView decoded{reinterpret_cast<const std::byte*>(values.data()),
                                            engine::DType::kF32, tensor->view.shape};
      Load(i, &decoded, dir.name());
    }
  }
}

void ParameterStore::LoadFrom(const engine::SafetensorsFile& file, const std::string& source) {
  for (size_t i = 0; i < specs_.size(); ++i) Load(i, file.Find(specs_[i].name), source);
}

void ParameterStore::Load(size_t i, const engine::ConstTensorView* tensor,
                          const std::string& source) {
  if (tensor == nullptr) {
    throw Error(ErrorCode::kDataLoss, source + ": tensor " + specs_[i].name + " is missing");
  }
  if (tensor->shape != whole_specs()[i].source_shape) {
    throw Error(ErrorCode::kDataLoss,
                source + ": tensor " + specs_[i].name + " does not have the expected shape");
  }
  ImportSource(i, *tensor);
}

void ParameterStore::Repack(engine::OpsContext& ops) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (shares_weights() && trained_[i]) continue;
    RepackWeight(ops, i, parameters_[i].master.data(), parameters_[i].low.as<int16_t>());
  }
}

bool ParameterStore::UsesAllBits(size_t i) const {
  return split() && ExportDType(specs_[i], dtype_) == DType::kF32;
}

void ParameterStore::RepackWeight(engine::OpsContext& ops, size_t i, const std::byte* master,
                                  const int16_t* low) {
  const WeightSpec& spec = specs_[i];
  const engine::Weight& weight = weights_[i];
  if (spec.kind == WeightKind::kVector) {
    // The weight refers to this object's own memory, which is not const here.
    auto* out = const_cast<float*>(weight.vector);
    const bool is_exact = UsesAllBits(i);
    for (int64_t e = 0; e < parameters_[i].elements; ++e) {
      const float stored = split() ? JoinMaster(reinterpret_cast<const Bf16*>(master)[e],
                                                is_exact ? low[e] : int16_t{0})
                                   : reinterpret_cast<const float*>(master)[e];
      out[e] = stored + spec.offset;
    }
    return;
  }
  const engine::ConstTensorView view{master, dtype_, {spec.n, spec.k}};
  auto* out = const_cast<std::byte*>(static_cast<const std::byte*>(weight.panels.panels));
  engine::PackPanels(ops, view, SourceLayout::kOutIn, spec.n, spec.k, dtype_, out);
}

void ParameterStore::ZeroGradients(engine::OpsContext& ops) {
  for (const Unit& unit : units_) {
    const std::span<float> part = shares_weights() ? OwnGradient(unit) : flat_gradient();
    const auto bytes = static_cast<int64_t>(part.size_bytes());
    auto* data = reinterpret_cast<std::byte*>(part.data());
    ops.pool().ParallelFor((bytes + kZeroedAtOnce - 1) / kZeroedAtOnce, [&](int64_t i, int) {
      const int64_t begin = i * kZeroedAtOnce;
      std::memset(data + begin, 0, static_cast<size_t>(std::min(kZeroedAtOnce, bytes - begin)));
    });
  }
}

void ParameterStore::ResetAverage() {
  for (size_t i = 0; has_average() && i < specs_.size(); ++i) {
    if (!trained_[i]) continue;
    const std::vector<float> values = Master(i);
    if (values.empty()) continue;
    std::memcpy(parameters_[i].ema.data(), values.data(), values.size() * sizeof(float));
  }
}

void ParameterStore::UpdateAverage(engine::OpsContext& ops) {
  if (!has_average()) return;
  const auto decay = static_cast<float>(ema_decay_);
  const float share = 1 - decay;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (!trained_[i]) continue;
    Parameter& p = parameters_[i];
    float* ema = p.ema.as<float>();
    constexpr int64_t kAtOnce = 1 << 14;
    ops.pool().ParallelFor((p.own_elements + kAtOnce - 1) / kAtOnce, [&](int64_t block, int) {
      const int64_t end = std::min(p.own_elements, (block + 1) * kAtOnce);
      for (int64_t e = block * kAtOnce; e < end; ++e) {
        const float value = split() ? JoinMaster(p.master.as<Bf16>()[e], p.low.as<int16_t>()[e])
                                    : p.master.as<float>()[e];
        ema[e] = decay * ema[e] + share * value;
      }
    });
  }
}

void ParameterStore::SwapAverage() {
  TANDEM_CHECK(has_average());
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (!trained_[i]) continue;
    const std::vector<float> values = Master(i);
    if (values.empty()) continue;
    float* ema = parameters_[i].ema.as<float>();
    SetOwnMaster(i, {ema, values.size()});
    std::memcpy(ema, values.data(), values.size() * sizeof(float));
  }
}

std::pair<int64_t, int64_t> ParameterStore::OwnRange(size_t i, int rank) const {
  const Parameter& p = parameters_[i];
  if (shard_.size == 1 || !trained_[i]) return {0, p.elements};
  const Unit& unit = units_[unit_of_[i]];
  const int64_t part = unit.elements() / shard_.size;
  const int64_t first = unit.begin + rank * part - p.gradient_begin;
  return {std::clamp<int64_t>(first, 0, p.elements),
          std::clamp<int64_t>(first + part, 0, p.elements)};
}

std::pair<int64_t, int64_t> ParameterStore::FlatRange(size_t i) const {
  const Parameter& p = parameters_[i];
  return {p.gradient_begin, p.gradient_begin + (trained_[i] ? p.elements : 0)};
}

int64_t ParameterStore::parameter_count() const {
  int64_t count = 0;
  for (const WeightSpec& spec : whole_specs()) count += spec.n * spec.k;
  return count;
}

std::vector<float> ParameterStore::Master(size_t i) const {
  const Parameter& p = parameters_[i];
  std::vector<float> values(static_cast<size_t>(p.own_elements));
  for (size_t e = 0; e < values.size(); ++e) {
    values[e] = split() ? JoinMaster(p.master.as<Bf16>()[e], p.low.as<int16_t>()[e])
                        : p.master.as<float>()[e];
  }
  return values;
}

void ParameterStore::SetMaster(size_t i, std::span<const float> values) {
  const Parameter& p = parameters_[i];
  const WeightSpec& whole = whole_specs()[i];
  TANDEM_CHECK(values.size() == static_cast<size_t>(whole.n * whole.k));
  std::vector<float> part;
  if (tensor_.is_split()) {
    part.resize(static_cast<size_t>(p.elements));
    TakePart(tensor_.weights[i], tensor_.place, specs_[i].n, specs_[i].k, sizeof(float),
             std::as_bytes(values).data(), std::as_writable_bytes(std::span(part)).data());
    values = part;
  }
  SetOwnMaster(
      i, values.subspan(static_cast<size_t>(p.own_begin), static_cast<size_t>(p.own_elements)));
}

void ParameterStore::SetOwnMaster(size_t i, std::span<const float> values) {
  Parameter& p = parameters_[i];
  for (size_t e = 0; e < values.size(); ++e) {
    if (split()) {
      SplitMaster(values[e], &p.master.as<Bf16>()[e], &p.low.as<int16_t>()[e]);
    } else {
      p.master.as<float>()[e] = values[e];
    }
  }
}

std::span<const std::byte> ParameterStore::MasterPart(size_t i) const {
  const AlignedBuffer& master = parameters_[i].master;
  return {master.data(), master.size()};
}

}  // namespace tandem::training
