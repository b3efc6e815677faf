#include "training/data/array_record/array_record_rows.h"

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/error.h"
#include "engine/io/json.h"
#include "training/data/array_record/tensor_example.h"
#include "training/data/json_rows.h"

namespace tandem::training {

std::shared_ptr<const ArrayRecordRows> ArrayRecordRows::Open(const std::filesystem::path& path,
                                                             std::shared_ptr<ChunkCache> cache) {
  return std::make_shared<const ArrayRecordRows>(ArrayRecordFile::Open(path, std::move(cache)));
}

nlohmann::ordered_json ArrayRecordRows::Read(int64_t i) const {
  const std::string record = file_->Read(i);
  if (record.size() > JsonRows::kMaxRowBytes) {
    throw Error(ErrorCode::kInvalidArgument, "has " + std::to_string(record.size()) +
                                                 " bytes, the limit is " +
                                                 std::to_string(JsonRows::kMaxRowBytes));
  }
  const size_t first = record.find_first_not_of(" \t\r\n");
  // An Example begins with the tag of its only field, 0x0A, which is a line end in a text.
  if (first != std::string::npos && record[first] == '{' && record[0] != '\n') {
    return engine::ParseUntrustedJson(record, "JSON",
                                      engine::JsonLimits{.keep_wide_integers = true});
  }
  nlohmann::ordered_json row;
  const auto fault = ErrorOf({ErrorCode::kDataLoss},
                             [&] { row = ParseTensorExample(std::as_bytes(std::span(record))); });
  if (fault || row.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "must be a JSON object or a tf.train.Example with features");
  }
  return row;
}

}  // namespace tandem::training
