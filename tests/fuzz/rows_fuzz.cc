// A file of training rows: JSON lines, an array, or CSV. Every row is read in every format; readers
// throw only Error, with one short line.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "tests/fuzz/strangers_file.h"
#include "training/data/csv_rows.h"
#include "training/data/example.h"
#include "training/data/json_rows.h"

namespace {

using namespace tandem::training;
using tandem::engine::ReadStrangersFile;
using tandem::engine::Require;

void ReadRows(const RowFile& rows) {
  for (int64_t i = 0; i < rows.size(); ++i) {
    Require(rows.Where(i).starts_with("line "));
    for (const RowFormat format :
         {RowFormat::kMessages, RowFormat::kShareGpt, RowFormat::kText, RowFormat::kInstruction,
          RowFormat::kPromptCompletion, RowFormat::kPreference, RowFormat::kOpenAiPreference}) {
      ReadStrangersFile([&] {
        ExampleOptions options;
        options.format = format;
        options.columns = ColumnsOf(format, {});
        const Example example = ParseExample(rows.Read(i), options);
        Require((example.rejected != nullptr) == IsPreference(format));
        if (!example.is_chat()) return;
        Require(example.chat.learned.size() == example.chat.messages->size());
        Require(example.chat.messages->back().at("role") == "assistant");
      });
    }
  }
  ReadStrangersFile([&] { DetectFormat(rows, {}); });
  ReadStrangersFile([&] { DetectFormat(rows, {}, RowKind::kPairs); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  ReadStrangersFile([&] { ReadRows(*JsonRows::Of(text, "fuzz")); });
  ReadStrangersFile([&] { ReadRows(*CsvRows::Of(text, "fuzz")); });
  return 0;
}
