#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "engine/api/options.h"

namespace tandem::bench {

// `tandem bench context`: one stream of an engine at several depths, and with guesses.
//   prefill   tokens/s of a prompt of each depth / that of the first depth
//   decode    ms of a token at each depth; beyond the first, the added time / the time in which the
//             read loop reads the added keys and values
//   guesses   decode with `prediction` set to the answer (copying), by look-up in a repeated
//   prompt,
//             and with a draft model / decode without
struct ContextBenchOptions {
  std::filesystem::path model;        // Hugging Face directory or another local model
  std::filesystem::path draft_model;  // empty: none
  std::vector<int64_t> depths = {512, 2048, 8192};
  int64_t tokens = 64;  // decoded at each depth
  int rounds = 3;       // the medians are reported
  engine::EngineOptions engine;
};

int RunContextBench(std::ostream& out, const ContextBenchOptions& options);

}  // namespace tandem::bench
