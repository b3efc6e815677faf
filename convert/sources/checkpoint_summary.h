#pragma once

#include <filesystem>
#include <string>

namespace tandem::convert {

// What a checkpoint is, without reading weights, as a JSON object: format, path, tensors and bytes;
// of checkpoints of ours kind, step, arch, layout and the run's state; of Orbax its metadata; of
// models the family and the type of the largest tensor; and what the record beside it says of its
// parents, with the certificate (provenance.h). Foreign texts in it are cut. Throws as OpenTensors,
// and kDataLoss for a manifest, config or record that cannot be read.
std::string CheckpointSummary(const std::filesystem::path& path);

}  // namespace tandem::convert
