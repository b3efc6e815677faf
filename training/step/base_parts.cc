#include "training/step/base_parts.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "engine/base/check.h"
#include "engine/base/error.h"
#include "engine/kernels/block_formats.h"

namespace tandem::training {
namespace {

using engine::BlockFormat;
using engine::PanelMatrix;
using engine::WeightKind;
using engine::WeightSpec;

constexpr int64_t kLanes = 16;  // outputs of a panel

// One weight of the base and this rank's part of it.
struct PartCopy {
  const engine::Weight& whole;
  const WeightSpec& spec;  // of the part
  const WeightSplit& split;
  TensorPlace place;
};

[[noreturn]] void RefuseBlocks(const PartCopy& copy, const std::string& why) {
  throw Error(ErrorCode::kUnsupported,
              std::string(TensorKey(copy.place.divides_rows)) + ": tensor " + copy.spec.name +
                  " of the base in " + engine::BlockFormatName(copy.whole.panels.block) + ": " +
                  why + ": set it to a smaller size, or lora.base_dtype to bf16");
}

int64_t PartBytes(const WeightSpec& spec, engine::DType dtype, BlockFormat block) {
  if (spec.kind == WeightKind::kVector) return spec.n * static_cast<int64_t>(sizeof(float));
  return block == BlockFormat::kNone ? engine::PanelBytes(dtype, spec.n, spec.k)
                                     : engine::PanelBytes(block, spec.n, spec.k);
}

// The output of the whole weight that is output `row` of the part.
std::vector<int64_t> WholeRows(const PartCopy& copy) {
  std::vector<int64_t> rows;
  if (copy.split.axis == WeightSplit::Axis::kInputs) {
    for (int64_t row = 0; row < copy.spec.n; ++row) rows.push_back(row);
    return rows;
  }
  VisitPart(copy.split, copy.place, copy.spec.n, 1, [&](int64_t first, int64_t, int64_t count) {
    for (int64_t i = 0; i < count; ++i) rows.push_back(first + i);
  });
  return rows;
}

void CopyPanels(engine::OpsContext& ops, const PartCopy& copy, std::byte* to) {
  const PanelMatrix& whole = copy.whole.panels;
  std::vector<float> values(static_cast<size_t>(whole.n * whole.k));
  engine::UnpackPanels(whole, values.data());
  std::vector<float> part(static_cast<size_t>(copy.spec.n * copy.spec.k));
  TakePart(copy.split, copy.place, copy.spec.n, copy.spec.k, sizeof(float),
           std::as_bytes(std::span(values)).data(), std::as_writable_bytes(std::span(part)).data());
  const engine::ConstTensorView view{
      std::as_bytes(std::span(part)).data(), engine::DType::kF32, {copy.spec.n, copy.spec.k}};
  engine::PackPanels(ops, view, engine::SourceLayout::kOutIn, copy.spec.n, copy.spec.k, whole.dtype,
                     to);
}

// Groups of 32 inputs move as they are.
void CopyGroups(const PartCopy& copy, std::byte* to) {
  const PanelMatrix& whole = copy.whole.panels;
  const int64_t k = copy.spec.k;
  const bool cuts_inputs = copy.split.axis == WeightSplit::Axis::kInputs;
  if (cuts_inputs && k % engine::kGroupSize != 0) {
    RefuseBlocks(copy, "a rank's " + std::to_string(k) + " inputs are no whole blocks of " +
                           std::to_string(engine::kGroupSize));
  }
  const int64_t groups = engine::GroupsOf(k);
  const int64_t first_group = cuts_inputs ? copy.place.rank * groups : 0;
  const int64_t whole_bytes = engine::BlockPanelBytes(whole.block, whole.k);
  const int64_t part_bytes = engine::BlockPanelBytes(whole.block, k);
  const std::vector<int64_t> rows = WholeRows(copy);
  for (int64_t row = 0; row < RoundUp<int64_t>(copy.spec.n, kLanes); ++row) {
    std::byte* panel = to + row / kLanes * part_bytes;
    for (int64_t g = 0; g < groups; ++g) {
      engine::BlockGroup group;
      if (row < copy.spec.n) {
        const int64_t from = rows[static_cast<size_t>(row)];
        group = engine::GetGroup(whole.block, whole.panels + from / kLanes * whole_bytes, whole.k,
                                 first_group + g, from % kLanes);
      }
      engine::PutGroup(whole.block, panel, k, g, row % kLanes, group);
    }
  }
}

// Whole panels of q4_k.
void CopySuperBlocks(const PartCopy& copy, std::byte* to) {
  const PanelMatrix& whole = copy.whole.panels;
  const std::vector<int64_t> rows = WholeRows(copy);
  const int64_t bytes = engine::BlockPanelBytes(whole.block, whole.k);
  if (copy.split.axis == WeightSplit::Axis::kInputs) {
    RefuseBlocks(copy, "its blocks of 256 inputs cannot be divided");
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    const bool begins = row % kLanes == 0;
    if (begins ? rows[row] % kLanes != 0 : rows[row] != rows[row - 1] + 1) {
      RefuseBlocks(copy, "a rank's outputs are no whole panels of 16");
    }
    if (!begins) continue;
    if (row + kLanes > rows.size() && rows.back() + 1 != whole.n) {
      RefuseBlocks(copy, "a rank's outputs are no whole panels of 16");
    }
    std::memcpy(to + static_cast<int64_t>(row) / kLanes * bytes,
                whole.panels + rows[row] / kLanes * bytes, static_cast<size_t>(bytes));
  }
}

engine::Weight CopyPart(engine::OpsContext& ops, const PartCopy& copy, AlignedBuffer* buffer) {
  engine::Weight part = copy.whole;
  part.spec = &copy.spec;
  const PanelMatrix& whole = copy.whole.panels;
  *buffer = AlignedBuffer(static_cast<size_t>(PartBytes(copy.spec, whole.dtype, whole.block)));
  if (copy.spec.kind == WeightKind::kVector) {
    TakePart(copy.split, copy.place, copy.spec.n, 1, sizeof(float),
             reinterpret_cast<const std::byte*>(copy.whole.vector), buffer->data());
    part.vector = buffer->as<float>();
    return part;
  }
  if (whole.block == BlockFormat::kNone) {
    CopyPanels(ops, copy, buffer->data());
  } else if (whole.block == BlockFormat::kInt4K) {
    CopySuperBlocks(copy, buffer->data());
  } else {
    CopyGroups(copy, buffer->data());
  }
  part.panels = {buffer->data(), whole.dtype, copy.spec.n, copy.spec.k, whole.block};
  return part;
}

}  // namespace

std::vector<WeightSpec> AdapterSpecs(const Program& program,
                                     const std::vector<LoraTarget>& targets) {
  int64_t count = 0;
  for (const LoraTarget& target : targets) count += LoraSpecCount(target);
  return {program.weight_specs.end() - count, program.weight_specs.end()};
}

engine::Weights PartsOfBase(const engine::Model& base, const Program& program,
                            engine::OpsContext& ops, std::vector<AlignedBuffer>* buffers) {
  engine::Weights weights = base.weights();
  if (!program.tensor.is_split()) return weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    const WeightSplit& split = program.tensor.weights[i];
    if (split.axis == WeightSplit::Axis::kWhole) continue;
    weights[i] = CopyPart(ops, {weights[i], program.weight_specs[i], split, program.tensor.place},
                          &buffers->emplace_back());
  }
  return weights;
}

int64_t BasePartBytes(const std::vector<WeightSpec>& whole, const std::vector<WeightSpec>& parts,
                      const engine::PackedTypes& types) {
  int64_t bytes = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].n == whole[i].n && parts[i].k == whole[i].k) continue;
    bytes += PartBytes(parts[i], types.dtype, types.blocks[i]);
  }
  return bytes;
}

}  // namespace tandem::training
