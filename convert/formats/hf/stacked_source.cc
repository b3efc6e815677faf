#include "convert/formats/hf/stacked_source.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include "convert/tensors/source_config.h"
#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/base/quoted.h"
#include "engine/model/find_weight.h"

namespace tandem::convert {
namespace {

using engine::StackedTensor;
using engine::WeightSpec;

class StackedSource final : public ModelSource {
 public:
  StackedSource(const ModelSource& source, std::vector<WeightSpec> specs,
                std::map<std::string, StackedTensor, std::less<>> stacks)
      : source_(source), specs_(std::move(specs)), stacks_(std::move(stacks)) {
    std::vector<bool> is_member(source.tensors().size());
    for (const auto& [name, stack] : stacks_) {
      const engine::DType dtype = CheckMembers(name, stack, &is_member);
      tensors_.push_back({name, {nullptr, dtype, stack.shape}});
    }
    for (size_t i = 0; i < is_member.size(); ++i) {
      if (!is_member[i]) tensors_.push_back(source.tensors()[i]);
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
  }

  const std::string& name() const override { return source_.name(); }
  const std::vector<engine::NamedTensor>& tensors() const override { return tensors_; }
  std::optional<std::string> ReadText(std::string_view file_name) const override {
    return source_.ReadText(file_name);
  }
  void ReadPart(int64_t part, const Take& take) const override {
    std::vector<std::byte> buffer;
    take(tensors_.at(static_cast<size_t>(part)), Read(part, &buffer));
    LetGo(part);
  }
  Bytes Read(int64_t tensor, std::vector<std::byte>* buffer) const override {
    const engine::NamedTensor& wanted = tensors_.at(static_cast<size_t>(tensor));
    const auto stack = stacks_.find(wanted.name);
    if (stack == stacks_.end()) return source_.Read(source_.Find(wanted.name), buffer);
    buffer->resize(wanted.view.bytes());
    const size_t width = engine::DTypeBytes(wanted.view.dtype);
    std::vector<std::byte> member;
    for (const StackedTensor::Member& place : stack->second.members) {
      const int64_t at = FindWeight(source_, specs_[place.spec]);
      Place(stack->second, place, source_.Read(at, &member), width, *buffer);
      source_.LetGo(at);
    }
    return *buffer;
  }
  void LetGo(int64_t tensor) const override {
    const int64_t at = source_.Find(tensors_.at(static_cast<size_t>(tensor)).name);
    if (at >= 0) source_.LetGo(at);
  }
  void LetGoOf(Bytes bytes) const override { source_.LetGoOf(bytes); }
  const ModelSource* state() const override { return source_.state(); }

 private:
  // Returns the members' dtype.
  engine::DType CheckMembers(const std::string& name, const StackedTensor& stack,
                             std::vector<bool>* is_member) const {
    const engine::ConstTensorView* first = nullptr;
    for (const StackedTensor::Member& place : stack.members) {
      const WeightSpec& spec = specs_[place.spec];
      const auto fail = [&](const std::string& what) {
        throw Error(ErrorCode::kDataLoss, source_.name() + ": tensor " + Quoted(spec.name) + " " +
                                              what + "; it is a part of " + Quoted(name));
      };
      const int64_t at = FindWeight(source_, spec);
      if (at < 0) fail("is missing");
      const engine::ConstTensorView& view = source_.tensors()[static_cast<size_t>(at)].view;
      if (view.shape != spec.source_shape) {
        fail("has shape " + engine::ShapeText(view.shape) + ", expected " +
             engine::ShapeText(spec.source_shape));
      }
      if (first == nullptr) first = &view;
      if (view.dtype != first->dtype) {
        fail("has type " + std::string(DTypeName(view.dtype)) + ", the first part has " +
             std::string(DTypeName(first->dtype)));
      }
      is_member->at(static_cast<size_t>(at)) = true;
    }
    return first->dtype;
  }

  void Place(const StackedTensor& stack, const StackedTensor::Member& place, Bytes member,
             size_t width, std::vector<std::byte>& out) const {
    const WeightSpec& spec = specs_[place.spec];
    const engine::StoredPart& part = place.part;
    const int64_t slice_elements =
        part.index < 0 ? 0 : engine::ElementCount(stack.shape) / stack.shape.front();
    const int64_t begin = std::max<int64_t>(part.index, 0) * slice_elements;
    const int64_t rows = part.transposed ? stack.shape.back() : 0;
    for (int64_t n = 0; n < spec.n; ++n) {
      const int64_t row = part.first_row + n * part.row_step;
      const std::byte* from = member.data() + static_cast<size_t>(n * spec.k) * width;
      if (!part.transposed) {
        std::memcpy(out.data() + static_cast<size_t>(begin + row * spec.k) * width, from,
                    static_cast<size_t>(spec.k) * width);
        continue;
      }
      for (int64_t k = 0; k < spec.k; ++k) {
        std::memcpy(out.data() + static_cast<size_t>(begin + k * rows + row) * width,
                    from + static_cast<size_t>(k) * width, width);
      }
    }
  }

  const ModelSource& source_;
  const std::vector<WeightSpec> specs_;
  const std::map<std::string, StackedTensor, std::less<>> stacks_;
  std::vector<engine::NamedTensor> tensors_;
};

// A multimodal checkpoint has its text part under longer names. Returns the stack's name with the
// beginning of the name under which `spec` is stored.
std::string NameBeside(const std::string& stack, const WeightSpec& spec,
                       const std::string& stored) {
  for (const size_t start : {size_t{0}, std::string_view("model.").size()}) {
    const std::string_view rest = std::string_view(spec.name).substr(start);
    if (!stored.ends_with(rest)) continue;
    return stored.substr(0, stored.size() - rest.size()) + stack.substr(start);
  }
  return stack;
}

using Stacks = std::map<std::string, StackedTensor, std::less<>>;

// The stacks under the names that the source's other weights have.
Stacks NamedAsIn(const ModelSource& source, const std::vector<WeightSpec>& specs, Stacks stacks) {
  for (const WeightSpec& spec : specs) {
    const int64_t at = spec.parts.empty() ? FindWeight(source, spec) : -1;
    if (at < 0) continue;
    Stacks named;
    for (auto& [name, stack] : stacks) {
      const std::string& stored = source.tensors()[static_cast<size_t>(at)].name;
      named.emplace(NameBeside(name, spec, stored), std::move(stack));
    }
    return named;
  }
  return stacks;
}

}  // namespace

std::unique_ptr<ModelSource> StackPublished(const ModelSource& source) {
  SourceConfig config;
  // A copy needs no family.
  if (ErrorOf({ErrorCode::kUnsupported}, [&] { config = ConfigOf(source); })) return nullptr;
  std::vector<WeightSpec> specs = config.family->list_weights(config.config);
  auto stacks = engine::StackedTensorsOf(specs, /*published=*/true);
  if (stacks.empty()) return nullptr;
  stacks = NamedAsIn(source, specs, std::move(stacks));
  return std::make_unique<StackedSource>(source, std::move(specs), std::move(stacks));
}

}  // namespace tandem::convert
