#pragma once

#include <filesystem>
#include <string>

namespace tandem::engine {

// Explains in one line why `path` (a file or a directory) does not open as a model, and what to do.
// It recognises a directory of several models, pickles, Orbax checkpoints, Flax msgpack, adapters,
// single weight files and the like. Reads names and first bytes only, and at most kMaxLookedAt
// entries of a directory. Never throws for what it finds. The text begins with `path`.
std::string WhyNotAModel(const std::filesystem::path& path);

inline constexpr int kMaxLookedAt = 1000;

}  // namespace tandem::engine
