#include "convert/formats/hf/hf.h"

#include <memory>
#include <vector>

#include "convert/formats/hf/stacked_source.h"
#include "convert/tensors/model_texts.h"
#include "convert/work/tensor_files.h"
#include "engine/io/atomic_write.h"

namespace tandem::convert {

void WriteHf(const ConvertSpec& spec, const WriteContext& context) {
  const std::unique_ptr<ModelSource> stacked = StackPublished(context.source);
  const ModelSource& source = stacked == nullptr ? context.source : *stacked;
  const std::vector<OutFile> files =
      InShards(EachAlone(source), "model", INT64_MAX, /*plain_if_one=*/true);
  CheckRoom(context.target, BytesOf(files));
  WriteTensorFiles(source, files, context);
  for (const auto& [name, text] : TextsOf(source, FloatTypeOf(spec.dtype))) {
    engine::WriteFileAtomically(context.target / name, text);
  }
}

std::unique_ptr<ModelSource> OpenHf(const ConvertSpec& /*spec*/,
                                    const std::filesystem::path& target) {
  return OpenModelFiles(target, {});
}

}  // namespace tandem::convert
