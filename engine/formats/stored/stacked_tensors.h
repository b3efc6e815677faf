#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "engine/tensor/tensor.h"

namespace tandem::engine {

// In a stacked checkpoint the tensors of all layers that differ by the number of the layer alone
// are one, with a first axis of layers, and `{L}` stands for the number in its name:
// model.layers.{L}.self_attn.q_proj.weight, [layers, …]. A layer is then one range of bytes.
inline constexpr std::string_view kLayerMark = "{L}";
inline constexpr int64_t kMaxStackedLayers = 10'000;

// A name that has a number between its dots, the first of which is the layer's.
struct LayerName {
  std::string stacked;  // with kLayerMark for the number
  int64_t layer = 0;
};
std::optional<LayerName> LayerNameOf(std::string_view name);

bool IsStackedName(std::string_view name);
std::string NameInLayer(std::string_view stacked, int64_t layer);

// Calls `take` with every layer of a stacked tensor, as a view into it. Throws kDataLoss naming
// `source` and the tensor for one without an axis of 1 to kMaxStackedLayers layers, or with several
// marks.
void ForEachLayer(const std::string& stacked, const ConstTensorView& view,
                  const std::string& source,
                  const std::function<void(const std::string& name, ConstTensorView layer)>& take);

}  // namespace tandem::engine
