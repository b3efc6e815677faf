// The part of ParameterStore that files and other ranks see: masters and moments as values, sources
// and named tensors.

#include <algorithm>
#include <bit>
#include <cstring>

#include "engine/base/check.h"
#include "engine/formats/stored/stored_tensor.h"
#include "training/step/export_dtype.h"
#include "training/step/parameters.h"

namespace tandem::training {
namespace {

using engine::Bf16;
using engine::DType;
using engine::SourceLayout;
using engine::WeightSpec;

// Index of element (n, k) in the source tensor's layout.
int64_t SourceIndex(const WeightSpec& spec, int64_t n, int64_t k) {
  return spec.layout == SourceLayout::kOutIn ? n * spec.k + k : k * spec.n + n;
}

}  // namespace

// Calls `visit` with each weight that has elements in [begin, end) of the flat order: its index,
// the first element, the number of elements, and their place relative to `begin`.
template <class Visit>
void ParameterStore::VisitFlat(int64_t begin, int64_t end, const Visit& visit) const {
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (!trained_[i]) continue;
    const int64_t first = std::max(begin, parameters_[i].gradient_begin);
    const int64_t last = std::min(end, parameters_[i].gradient_begin + parameters_[i].elements);
    if (first >= last) continue;
    visit(i, first - parameters_[i].gradient_begin, last - first, first - begin);
  }
}

void ParameterStore::PackMasters(int64_t begin, std::span<uint32_t> bits) const {
  std::fill(bits.begin(), bits.end(), 0u);
  const int64_t end = begin + static_cast<int64_t>(bits.size());
  VisitFlat(begin, end, [&](size_t i, int64_t first, int64_t n, int64_t to) {
    const Parameter& p = parameters_[i];
    if (!split()) {
      std::memcpy(bits.data() + to, p.master.as<float>() + first,
                  static_cast<size_t>(n) * sizeof(float));
      return;
    }
    const Bf16* high = p.master.as<Bf16>() + first;
    const int16_t* low = p.low.as<int16_t>() + first;
    for (int64_t e = 0; e < n; ++e) {
      bits[static_cast<size_t>(to + e)] = static_cast<uint32_t>(std::bit_cast<uint16_t>(high[e]))
                                              << 16 |
                                          static_cast<uint16_t>(low[e]);
    }
  });
}

void ParameterStore::UnpackMasters(int64_t begin, std::span<const uint32_t> bits) {
  const int64_t end = begin + static_cast<int64_t>(bits.size());
  VisitFlat(begin, end, [&](size_t i, int64_t first, int64_t n, int64_t from) {
    Parameter& p = parameters_[i];
    if (!split()) {
      std::memcpy(p.master.as<float>() + first, bits.data() + from,
                  static_cast<size_t>(n) * sizeof(float));
      return;
    }
    Bf16* high = p.master.as<Bf16>() + first;
    int16_t* low = p.low.as<int16_t>() + first;
    for (int64_t e = 0; e < n; ++e) {
      const uint32_t both = bits[static_cast<size_t>(from + e)];
      high[e] = std::bit_cast<Bf16>(static_cast<uint16_t>(both >> 16));
      low[e] = static_cast<int16_t>(both & 0xffffu);
    }
  });
}

std::vector<ParameterStore::MomentPart> ParameterStore::MomentParts() {
  std::vector<MomentPart> parts;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (!trained_[i]) continue;
    Parameter& p = parameters_[i];
    const auto add_one = [&](const std::string& kind, DType dtype, AlignedBuffer& values,
                             bool is_shared) {
      const WeightSpec& whole = whole_specs()[i];
      MomentPart part{kind + "/" + specs_[i].name, i, dtype, {whole.n, whole.k}, values.span(), {}};
      const auto width = static_cast<int64_t>(engine::DTypeBytes(dtype));
      if (!is_shared) part.part_bytes.push_back(p.elements * width);
      for (int rank = 0; is_shared && rank < shard_.size; ++rank) {
        const auto [begin, end] = OwnRange(i, rank);
        part.part_bytes.push_back((end - begin) * width);
      }
      parts.push_back(std::move(part));
    };
    const auto add = [&](const std::string& moment, bool has, AlignedBuffer& values,
                         AlignedBuffer& scales) {
      if (!has) return;
      const bool coded = layouts_[i].coded;
      add_one(moment, coded ? DType::kU8 : DType::kF32, values, true);
      if (!coded) return;
      MomentPart of_scales{moment + "_scales/" + specs_[i].name,
                           i,
                           DType::kF32,
                           {MomentBlocks(p.elements)},
                           scales.span(),
                           {}};
      for (int rank = 0; rank < shard_.size; ++rank) {
        const auto [begin, end] = OwnRange(i, rank);
        of_scales.part_bytes.push_back(MomentBlocks(end - begin) *
                                       static_cast<int64_t>(sizeof(float)));
      }
      parts.push_back(std::move(of_scales));
    };
    add("m", layouts_[i].first, p.m, p.m_scales);
    add("v", layouts_[i].second, p.v, p.v_scales);
    if (!shares_weights() && !tensor_.is_split()) continue;
    if (split()) add_one("low", DType::kI16, p.low, shares_weights());
    if (has_average()) add_one("ema", DType::kF32, p.ema, shares_weights());
  }
  return parts;
}

void ParameterStore::VisitState(const std::function<void(std::span<std::byte>)>& visit) {
  TANDEM_CHECK(!shares_weights() && !tensor_.is_split());
  for (Parameter& p : parameters_) {
    const bool shared = shard_.size == 1;
    for (AlignedBuffer* buffer :
         {&p.master, &p.low, &p.ema, &p.m, &p.v, &p.m_scales, &p.v_scales}) {
      const bool is_moment = buffer != &p.master && buffer != &p.low && buffer != &p.ema;
      if (buffer->size() > 0 && (shared || !is_moment)) visit(buffer->span());
    }
  }
}

std::vector<std::byte> ParameterStore::ExportSource(size_t i) const {
  if (ExportDType(specs_[i], dtype_) == dtype_) return ExportSource(i, MasterPart(i));
  const std::vector<float> values = Master(i);
  return ExportSource(i, std::as_bytes(std::span(values)));
}

std::vector<std::byte> ParameterStore::ExportSource(size_t i,
                                                    std::span<const std::byte> master) const {
  const WeightSpec& spec = whole_specs()[i];
  const size_t width = engine::DTypeBytes(ExportDType(spec, dtype_));
  std::vector<std::byte> out(static_cast<size_t>(spec.n * spec.k) * width);
  TANDEM_CHECK(master.size() == out.size());
  for (int64_t n = 0; n < spec.n; ++n) {
    for (int64_t k = 0; k < spec.k; ++k) {
      std::memcpy(out.data() + static_cast<size_t>(SourceIndex(spec, n, k)) * width,
                  master.data() + static_cast<size_t>(n * spec.k + k) * width, width);
    }
  }
  return out;
}

void ParameterStore::ImportSource(size_t i, const engine::ConstTensorView& tensor) {
  const WeightSpec& spec = whole_specs()[i];
  std::vector<float> source(static_cast<size_t>(spec.n * spec.k));
  engine::ConvertToF32(tensor, source);
  std::vector<float> values(source.size());
  for (int64_t n = 0; n < spec.n; ++n) {
    for (int64_t k = 0; k < spec.k; ++k) {
      values[static_cast<size_t>(n * spec.k + k)] =
          source[static_cast<size_t>(SourceIndex(spec, n, k))];
    }
  }
  SetMaster(i, values);
}

std::vector<engine::NamedTensor> ParameterStore::OptimizerTensors() const {
  std::vector<engine::NamedTensor> tensors;
  if (shares_weights() || tensor_.is_split()) return tensors;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (!trained_[i]) continue;
    const Parameter& p = parameters_[i];
    const std::vector<int64_t> shape = {specs_[i].n, specs_[i].k};
    const auto add = [&](const std::string& moment, const AlignedBuffer& values,
                         const AlignedBuffer& scales) {
      if (values.size() == 0) return;
      const bool coded = scales.size() > 0;
      const bool whole = coded || values.size() == static_cast<size_t>(p.elements) * sizeof(float);
      tensors.push_back({moment + "/" + specs_[i].name,
                         {values.data(), coded ? DType::kU8 : DType::kF32,
                          whole ? shape : std::vector<int64_t>{specs_[i].n + specs_[i].k}}});
      if (!coded) return;
      tensors.push_back({moment + "_scales/" + specs_[i].name,
                         {scales.data(), DType::kF32, {MomentBlocks(p.elements)}}});
    };
    if (shard_.size == 1) {
      add("m", p.m, p.m_scales);
      add("v", p.v, p.v_scales);
    }
    if (split()) {
      tensors.push_back({"low/" + specs_[i].name, {p.low.data(), DType::kI16, shape}});
    }
    if (has_average()) {
      tensors.push_back({"ema/" + specs_[i].name, {p.ema.data(), DType::kF32, shape}});
    }
  }
  return tensors;
}

void ParameterStore::RestoreOptimizer(const TensorFiles& files, const std::string& source) {
  for (const engine::NamedTensor& mine : OptimizerTensors()) {
    const engine::ConstTensorView* theirs = files.Find(mine.name);
    if (theirs == nullptr || theirs->shape != mine.view.shape || theirs->dtype != mine.view.dtype) {
      throw Error(ErrorCode::kDataLoss,
                  source + ": optimiser tensor " + mine.name +
                      " is missing or has the wrong shape; set train.optimizer (type, state, "
                      "momentum, ema_decay) as at the start of the run");
    }
    // The views point into this object's own buffers, which are not const here.
    std::memcpy(const_cast<std::byte*>(mine.view.data), theirs->data, theirs->bytes());
  }
}

}  // namespace tandem::training
