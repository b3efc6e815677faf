#pragma once

#include <string>
#include <string_view>

namespace tandem::training {

// Throws kDataLoss for a file that is no text: compressed, Parquet, UTF-16 or binary. `wanted` is
// the expected kind, for the message ("JSON").
void RefuseOtherKinds(std::string_view text, const std::string& name, const std::string& wanted);

}  // namespace tandem::training
