#include "tests/support/random_gguf.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/formats/gguf/gguf.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace tandem::tests {

namespace fs = std::filesystem;

fs::path WriteRandomGguf(engine::Encoding encoding, const fs::path& dir) {
  const std::string name(engine::EncodingName(encoding));
  const fs::path wide = dir / ("wide-" + name);
  fs::create_directory(wide);
  WriteTinyModel(wide, {.hidden_dim = 256});
  const GgufWriter writer = ConvertToGguf(wide, {});
  GgufWriter replaced;
  replaced.Add("general.architecture", "llama");
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, uint32_t>>{{"embedding_length", 256},
                                                     {"feed_forward_length", 512},
                                                     {"block_count", 2},
                                                     {"attention.head_count", 4},
                                                     {"attention.head_count_kv", 2},
                                                     {"context_length", 64}}) {
    replaced.Add(std::string("llama.") + key, value);
  }
  replaced.Add("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  const std::string honest = writer.Bytes();
  const auto file = engine::GgufFile::FromBytes(std::as_bytes(std::span(honest)), "wide");
  for (const engine::GgufFile::Tensor& tensor : file.tensors()) {
    const auto elements = engine::ElementCount(tensor.shape);
    const bool matrix = tensor.shape.size() == 2;
    replaced.AddTensor(tensor.name, matrix ? GgufTypeOf(encoding) : kGgufF32, tensor.shape,
                       matrix ? RandomBlocks(encoding, elements / engine::BlockElements(encoding))
                              : std::string(reinterpret_cast<const char*>(tensor.data.data()),
                                            tensor.data.size()));
  }
  const fs::path path = dir / (name + "-random.gguf");
  replaced.Write(path);
  return path;
}

}  // namespace tandem::tests
