#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/formats/gguf/gguf_quantize.h"
#include "convert/formats/gguf/gguf_writer.h"
#include "convert/tensors/model_source.h"
#include "convert/work/write_context.h"
#include "engine/formats/gguf/gguf_names.h"
#include "engine/model/families/config.h"

namespace tandem::convert {

// Plans and writes the tensors of a GGUF file.

// One tensor of the file, or the part of a stacked tensor that one expert has. It is a source
// tensor under another name, perhaps with reordered rows or 1 added, or `values`.
struct GgufTensor {
  GgufTensorInfo info;      // the shape of the part
  int64_t source = -1;      // index into ModelSource::tensors(); -1: `values`
  std::string weight = {};  // the family's name
  int64_t expert = -1;      // the slice of a stacked tensor; -1: a tensor of its own
  size_t file_tensor = 0;   // index into FileTensors
  int64_t file_offset = 0;  // of the part in the file's tensor, in bytes
  int64_t half = -1;        // 0, 1: of the rows of an expert in the file's tensor; -1: all rows
  engine::GgufChange change = engine::GgufChange::kNone;
  int64_t heads = 1;  // for kQueryPairs, kKeyPairs
  // The source's rows and columns, by the file's; empty: the same.
  std::vector<int64_t> rows = {}, columns = {};
  int64_t key_dim = 0, value_dim = 0;  // of a head; for kLatentKeys, kLatentValues
  std::vector<float> factors = {};     // of the rows; empty: 1
  std::vector<float> values = {};      // empty: zeros
  GgufError error = {};                // set after writing
};

// Parses "f32", "f16", "bf16", "q8_0", "q4_0".
GgufNumbers GgufNumbersOf(const std::string& dtype);

// Lists all tensors of the file in the order of the family's list. Matrices have type `dtype`, or
// the source's if it is empty. Vectors, positions and rows that are not whole blocks stay f32. With
// q4_0 the matrix of the logits is q8_0. Throws kUnsupported for a tensor that the architecture
// lacks, kDataLoss for one that is missing or misshapen.
std::vector<GgufTensor> PlanGgufTensors(const engine::GgufArchitecture& architecture,
                                        const engine::ModelConfig& config,
                                        const ModelSource& source, const std::string& dtype);

// Multiplies rows of a weight, which begin with row `first`, with the tensor's factors. REQUIRES:
// it has some.
void MultiplyRows(const GgufTensor& tensor, int64_t first, std::span<float> rows);

// The tensors of the file, with stacked experts. Sets the places of the parts. Throws kDataLoss
// naming a tensor whose experts are not all there or differ in shape or type.
std::vector<GgufTensorInfo> FileTensors(const std::string& source,
                                        std::vector<GgufTensor>& tensors);

// Writes the data of all tensors. Parts of the source follow each other; the workers share the rows
// of each tensor. Memory is the source's part plus a few MiB per worker. Tensors in the journal of
// a found file are kept with their recorded errors. Throws kDataLoss naming a tensor with values
// that its type cannot hold, kIo.
void WriteGgufTensors(const WriteContext& context, const GgufFileWriter& writer,
                      std::vector<GgufTensor>& tensors);

}  // namespace tandem::convert
