#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/tensor/tensor.h"

namespace tandem::engine {

// A stacked checkpoint stores the tensors that differ only in their layer number as one, with a
// first axis of layers. `{L}` takes the place of the number in its name:
// model.layers.{L}.self_attn.q_proj.weight, [layers, …]. Each layer is one range of bytes.
inline constexpr std::string_view kLayerMark = "{L}";
inline constexpr int64_t kMaxStackedLayers = 10'000;

// A name split at its first dot-separated component that is a number: the layer.
struct LayerName {
  std::string stacked;  // with kLayerMark in place of the number
  int64_t layer = 0;
};
std::optional<LayerName> LayerNameOf(std::string_view name);

bool IsStackedName(std::string_view name);
std::string NameInLayer(std::string_view stacked, int64_t layer);

// Calls `take` for every layer of a stacked tensor, with a view into it. Throws kDataLoss naming
// `source` and the tensor when the first axis is not 1 to kMaxStackedLayers long, or the name has
// several marks.
void ForEachLayer(const std::string& stacked, const ConstTensorView& view,
                  const std::string& source,
                  const std::function<void(const std::string& name, ConstTensorView layer)>& take);

}  // namespace tandem::engine
