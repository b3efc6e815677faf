#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

namespace tandem::bench {

// `tandem bench constrain`: cost of constrained decoding in an engine without a server. Constrained
// and free runs alternate. Each figure compares the two runs of a pair.
//   decode       tokens/s of `streams` requests under one schema / of free requests; likewise the
//                processor time, which other programs disturb less
//   first token  time from the look-up of a compiled grammar to the first token, minus a free one's
//   compile      time of a schema of about 10 KB that is not cached
//   beside       p99 of the time between tokens of free streams while one such schema a second
//                compiles / without
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
