#include "convert/source.h"

#include <array>

#include "engine/base/error.h"

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;

struct Mark {
  SourceKind kind;
  const char* file;  // that only such a directory has
};
// In this order: some adapters have the config.json of their base beside them.
constexpr std::array kMarks = {
    Mark{SourceKind::kAdapter, "adapter_config.json"},
    Mark{SourceKind::kHf, "config.json"},
};

}  // namespace

SourceKind SniffSource(const fs::path& path, const std::string& param) {
  if (!fs::exists(path)) {
    throw Error(ErrorCode::kNotFound, path.string() + " does not exist")
        .WithParam(param)
        .WithReason("path_not_found");
  }
  for (const Mark& mark : kMarks) {
    if (fs::is_regular_file(path / mark.file)) return mark.kind;
  }
  throw Error(ErrorCode::kUnsupported,
              path.filename().string() +
                  " is neither a Hugging Face directory (config.json) nor a PEFT directory "
                  "(adapter_config.json), which are all that this version converts from")
      .WithParam(param)
      .WithReason("unsupported_value");
}

}  // namespace tandem::convert
