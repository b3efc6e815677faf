#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

namespace tandem::training {

// A row from a serialised tf.train.Example: one column for each feature. A feature of one value is
// that value, one of several a list. Bytes must be UTF-8 text. Throws kDataLoss for bytes of
// another kind, and kInvalidArgument for a feature that is no text and no number.
nlohmann::ordered_json ParseTensorExample(std::span<const std::byte> bytes);

}  // namespace tandem::training
