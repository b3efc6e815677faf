#include "engine/formats/stored/stacked_tensors.h"

#include <algorithm>
#include <charconv>

#include "engine/base/error.h"
#include "engine/base/quoted.h"

namespace tandem::engine {
namespace {

// Accepts at most four digits without a leading zero, as std::to_string writes them.
std::optional<int64_t> LayerNumber(std::string_view text) {
  if (text.empty() || text.size() > 4 || (text.size() > 1 && text.front() == '0')) {
    return std::nullopt;
  }
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

}  // namespace

std::optional<LayerName> LayerNameOf(std::string_view name) {
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    if (const auto layer = LayerNumber(name.substr(begin, end - begin))) {
      std::string stacked(name.substr(0, begin));
      stacked.append(kLayerMark).append(name.substr(end));
      return LayerName{std::move(stacked), *layer};
    }
    begin = end + 1;
  }
  return std::nullopt;
}

bool IsStackedName(std::string_view name) { return name.find(kLayerMark) != name.npos; }

std::string NameInLayer(std::string_view stacked, int64_t layer) {
  std::string name(stacked);
  return name.replace(name.find(kLayerMark), kLayerMark.size(), std::to_string(layer));
}

void ForEachLayer(const std::string& stacked, const ConstTensorView& view,
                  const std::string& source,
                  const std::function<void(const std::string& name, ConstTensorView layer)>& take) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kDataLoss, source + ": tensor " + Quoted(stacked) + ": " + what);
  };
  if (stacked.find(kLayerMark, stacked.find(kLayerMark) + 1) != stacked.npos) {
    fail("the name has more than one " + std::string(kLayerMark));
  }
  if (view.shape.empty()) fail("the shape has no layer axis");
  const int64_t layers = view.shape.front();
  if (layers < 1 || layers > kMaxStackedLayers) {
    fail("the tensor has " + std::to_string(layers) + " layers; expected 1 to " +
         std::to_string(kMaxStackedLayers));
  }
  ConstTensorView layer = view;
  layer.shape.erase(layer.shape.begin());
  const size_t bytes = layer.bytes();
  for (int64_t i = 0; i < layers; ++i) {
    layer.data = view.data == nullptr ? nullptr : view.data + static_cast<size_t>(i) * bytes;
    take(NameInLayer(stacked, i), layer);
  }
}

}  // namespace tandem::engine
