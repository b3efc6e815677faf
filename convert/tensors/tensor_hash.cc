#include "convert/tensors/tensor_hash.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/base/error.h"
#include "engine/io/sha256.h"

namespace tandem::convert {

std::vector<TensorHash> HashTensors(const ModelSource& source,
                                    const std::function<void(int64_t bytes)>& advance) {
  std::vector<TensorHash> hashes;
  for (int64_t part = 0; part < source.parts(); ++part) {
    source.ReadPart(part, [&](const engine::NamedTensor& tensor, ModelSource::Bytes bytes) {
      hashes.push_back({tensor.name, std::string(DTypeName(tensor.view.dtype)), tensor.view.shape,
                        engine::ToHex(engine::Sha256Of(bytes))});
      if (advance) advance(static_cast<int64_t>(bytes.size()));
    });
  }
  std::sort(hashes.begin(), hashes.end(),
            [](const TensorHash& a, const TensorHash& b) { return a.name < b.name; });
  return hashes;
}

std::string HashOf(const std::vector<TensorHash>& tensors) {
  using Json = nlohmann::ordered_json;
  engine::Sha256 sha;
  for (const TensorHash& tensor : tensors) {
    const Json line = {tensor.name, tensor.dtype, tensor.shape, tensor.sha256};
    sha.Update(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
  return engine::ToHex(sha.Finish());
}

}  // namespace tandem::convert
