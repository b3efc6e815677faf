#include "convert/formats/maxtext/maxtext_exact.h"

#include <utility>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::convert {
namespace {

using engine::DType;
using Leaf = OrbaxCheckpoint::Leaf;

}  // namespace

MaxTextExact::MaxTextExact(const std::filesystem::path& root, std::string source)
    : source_(std::move(source)) {
  const std::filesystem::path items = root / "exact" / "items";
  if (!OrbaxCheckpoint::Is(items)) return;
  checkpoint_ = OrbaxCheckpoint::Open(items);
  for (const Leaf& leaf : checkpoint_->leaves()) leaves_[leaf.name()] = &leaf;
}

void MaxTextExact::Broken(const std::string& why) const {
  throw Error(ErrorCode::kDataLoss, source_ + ": " + why);
}

const Leaf* MaxTextExact::Find(const std::string& name) const {
  const auto found = leaves_.find(name);
  return found == leaves_.end() || !found->second->array ? nullptr : found->second;
}

AlignedBuffer MaxTextExact::Read(const Leaf& leaf, const std::vector<int64_t>& shape,
                                 const ParallelFor& parallel_for) const {
  if (leaf.array->shape != shape) {
    Broken("exact: " + Quoted(leaf.name()) + " has the shape " +
           engine::ShapeText(leaf.array->shape) + " instead of " + engine::ShapeText(shape));
  }
  checkpoint_->CheckStored(leaf);
  AlignedBuffer bytes(static_cast<size_t>(leaf.array->bytes()));
  checkpoint_->Read(leaf, bytes.span(), parallel_for);
  return bytes;
}

Corrections MaxTextExact::CorrectionsOf(const engine::NamedTensor& tensor,
                                        const MaxTextRecord& record,
                                        const ParallelFor& parallel_for,
                                        AlignedBuffer* room) const {
  Corrections corrections;
  const Leaf* leaf = Find(tensor.name);
  if (leaf == nullptr) return corrections;
  const auto recorded = record.dtypes.find(tensor.name);
  if (recorded == record.dtypes.end()) return corrections;
  corrections.dtype = recorded->second;
  corrections.stored = leaf->array->dtype.value_or(DType::kF32);
  if (corrections.stored != DType::kI8 && corrections.stored != DType::kI32) {
    Broken("exact: " + Quoted(leaf->name()) + " is neither int8 nor int32");
  }
  *room = Read(*leaf, tensor.view.shape, parallel_for);
  corrections.steps = room->span();
  return corrections;
}

}  // namespace tandem::convert
