#pragma once

#include <filesystem>
#include <string>

#include "training/setup/open_data.h"

namespace tandem::training {

// Marks around the trained parts of a text.
struct Marks {
  std::string before;
  std::string behind;
};

// The sample as text; a pair shows both answers with their prompt. Bytes that form no character
// become U+FFFD, control characters are escaped.
std::string MarkedText(const engine::Tokenizer& tokenizer, const Sample& sample,
                       const Marks& marks);
// One line per token: number, id, whether it is trained, spelling.
std::string TokenTable(const engine::Tokenizer& tokenizer, const Sample& sample);
// The output of `tandem data stats`: a histogram of lengths, shares, duplicates. Measures the
// lengths here for sources other than rows.
std::string Statistics(const TrainSpec& spec, const OpenedData& data, const std::string& path);

struct PreparedData {
  int64_t samples = 0;
  int64_t tokens = 0;
  int64_t bytes = 0;
};
// Writes a run's tokenised samples to a prepared file, with long samples uncut. The spec decides
// about bad rows, as in a run.
PreparedData PrepareData(const TrainSpec& spec, const ModelFiles& files, ThreadPool& pool,
                         DataSplit split, const std::filesystem::path& out);

}  // namespace tandem::training
