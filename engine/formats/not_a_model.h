#pragma once

#include <filesystem>
#include <string>

namespace tandem::engine {

// Says in one line why `path` (a file or a directory) does not open as a model, and what to do: a
// directory of several models, weights in pickles, a checkpoint of Orbax, a msgpack of Flax, an
// adapter, a single file of weights, and the like. Looks at names and first bytes only, at most
// kMaxLookedAt entries of a directory. Never throws for what it finds; the text begins with `path`.
std::string WhyNotAModel(const std::filesystem::path& path);

inline constexpr int kMaxLookedAt = 1000;

}  // namespace tandem::engine
