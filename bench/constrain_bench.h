#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace tandem::bench {

// `tandem bench constrain`: cost of constrained decoding in an engine without a server. Constrained
// and free runs alternate. Each figure compares the two runs of a pair.
//
// - decode: tokens/s of `streams` requests under one schema, over free requests. The processor time
//   is compared too, because other programs disturb it less.
//
// - first token: the time from finding a compiled grammar to the first token, minus a free one's.
//
// - compile: the time of a schema of about 10 KB that is not cached.
//
// - beside: the p99 between tokens of free streams while one such schema a second compiles, over
//   the p99 without.
struct ConstrainBenchOptions {
  int64_t vocab_size = 32000;       // of the random model; ignored with a tokenizer
  std::string tokenizer_json = {};  // text of a tokenizer.json to use; empty: syllables
  int64_t layers = 6;
  int64_t width = 288;  // a multiple of 48
  int threads = 0;      // 0: one per physical core
  int rounds = 5;
  int64_t streams = 16;
  int64_t tokens = 200;  // of each stream and run
};

int RunConstrainBench(std::ostream& out, const ConstrainBenchOptions& options);

}  // namespace tandem::bench
