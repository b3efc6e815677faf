// Hugging Face directories: one model.safetensors, with what lies beside the source's weights.

#include <vector>

#include "convert/formats.h"
#include "convert/model_texts.h"
#include "engine/io/atomic_write.h"
#include "engine/io/safetensors_stream.h"

namespace tandem::convert {

void WriteHf(const ConvertSpec& spec, const WriteContext& context) {
  const ModelSource& source = context.source;
  int64_t read = -1;
  std::vector<std::byte> buffer;
  engine::WriteSafetensors(context.target / "model.safetensors", source.tensors(),
                           {{"format", "pt"}}, [&](const engine::NamedTensor& tensor) {
                             if (read >= 0) source.LetGo(read);
                             read = source.Find(tensor.name);
                             context.advance(static_cast<int64_t>(tensor.view.bytes()));
                             return source.Read(read, &buffer);
                           });
  for (const auto& [name, text] : TextsOf(source, FloatTypeOf(spec.dtype))) {
    engine::WriteFileAtomically(context.target / name, text);
  }
}

std::unique_ptr<ModelSource> OpenHf(const ConvertSpec& /*spec*/,
                                    const std::filesystem::path& target) {
  return OpenModelFiles(target, {});
}

}  // namespace tandem::convert
