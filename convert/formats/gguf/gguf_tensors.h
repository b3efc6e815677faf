#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/formats/gguf/gguf_quantize.h"
#include "convert/formats/gguf/gguf_writer.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/model/config.h"

namespace tandem::convert {

// The tensors of a model as those of a GGUF file.

// A tensor of the file: one of the source under another name, its rows in another order, or with 1
// added; or numbers that are in memory.
struct GgufTensor {
  GgufTensorInfo info;
  int64_t source = -1;  // index into ModelSource::tensors(); -1: `values`
  engine::GgufChange change = engine::GgufChange::kNone;
  int64_t heads = 1;  // of kQueryPairs, kKeyPairs
  std::vector<float> values = {};
  GgufError error = {};  // once it has been written
};

// Of "f32", "f16", "bf16", "q8_0", "q4_0".
GgufNumbers GgufNumbersOf(const std::string& dtype);

// All tensors of the file, in the order of the family's list. Matrices are of type `dtype`, one of
// f32, f16, bf16, q8_0, q4_0, or as the source has them where it is empty; vectors, positions and
// rows that are not whole blocks stay f32; with q4_0, what makes the logits is q8_0. Throws
// kDataLoss for a tensor that is missing or of another shape.
std::vector<GgufTensor> PlanGgufTensors(const engine::GgufArchitecture& architecture,
                                        const engine::ModelConfig& config,
                                        const ModelSource& source, const std::string& dtype);

// Writes the data of all of them, part by part of the source, the rows of a tensor in pieces by all
// workers; holds what the source holds and a few MiB for each worker. Of a file that was found,
// tensors that the journal has stay as they are, with the errors of then. Throws kDataLoss naming a
// tensor with values that its type does not have, kIo.
void WriteGgufTensors(const WriteContext& context, const GgufFileWriter& writer,
                      std::vector<GgufTensor>& tensors);

}  // namespace tandem::convert
