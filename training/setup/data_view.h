#pragma once

#include <filesystem>
#include <string>

#include "training/setup/open_data.h"

namespace tandem::training {

// Around the parts of a text that are trained.
struct Marks {
  std::string before;
  std::string behind;
};

// The sample as text, of a pair both answers with their prompt; bytes that are no character become
// U+FFFD, control characters are escaped.
std::string MarkedText(const engine::Tokenizer& tokenizer, const Sample& sample,
                       const Marks& marks);
// A line for each token: number, id, whether it is trained, spelling.
std::string TokenTable(const engine::Tokenizer& tokenizer, const Sample& sample);
// Lengths as a histogram, shares, duplicates: what `tandem data stats` prints. The lengths of
// sources other than rows are measured here.
std::string Statistics(const TrainSpec& spec, const OpenedData& data, const std::string& path);

struct PreparedData {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
};
// Writes what a run would tokenise, over-long samples whole, to a prepared file. Bad rows are the
// spec's affair, as in a run.
PreparedData PrepareData(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool,
                         DataSplit split, const std::filesystem::path& out);

}  // namespace tandem::training
