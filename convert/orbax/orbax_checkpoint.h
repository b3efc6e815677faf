#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert/orbax/zarr.h"
#include "convert/orbax/zarr_reader.h"

namespace tandem::convert {

// A checkpoint as Orbax writes it (MaxText, Tunix, Flax): a tree whose leaves are arrays, in any of
// its four variants: OCDBT or a directory per array, zarr 2 or 3. What it is, its files say.
// Immutable; any thread.
class OrbaxCheckpoint {
 public:
  struct Leaf {
    std::vector<std::string> path;  // keys of the tree: "params", "params", "decoder", …
    std::string value_type;  // "jax.Array", "scalar", "None", …; empty: the tree is not told
    std::optional<ZarrArray> array;  // none of empty nodes and texts
    std::string name() const;        // joined by dots, which is the array's name in the store
  };

  // Opens a directory of steps ("100", "step_100"; takes the last finished one), a step, or one
  // item of a step (`items`, `model_params`, …). A leaf whose element type is not read does not
  // hide the others; only reading it throws. Throws kNotFound, kUnsupported for other directories,
  // unfinished steps and steps of several items (naming them), and kDataLoss.
  static OrbaxCheckpoint Open(const std::filesystem::path& path);
  // Whether `path` is a checkpoint of Orbax, also one that Open refuses.
  static bool Is(const std::filesystem::path& path);

  const std::filesystem::path& item_dir() const { return dir_; }
  bool is_ocdbt() const { return is_ocdbt_; }
  const std::vector<Leaf>& leaves() const { return leaves_; }  // ascending by path

  // Throws kDataLoss when chunks are missing or too small for the shape; see ZarrReader. Call it
  // before allocating the array's bytes.
  void CheckStored(const Leaf& leaf) const;
  // The elements of a leaf that has an array, on all threads of parallel_for: see ZarrReader.
  void Read(const Leaf& leaf, std::span<std::byte> out,
            const ParallelFor& parallel_for = OneByOne) const;
  void ReadRuns(const Leaf& leaf, const TakeRun& take,
                const ParallelFor& parallel_for = OneByOne) const;
  void Decompress(const Leaf& leaf, const ParallelFor& parallel_for = OneByOne) const;

 private:
  std::filesystem::path dir_;
  bool is_ocdbt_ = false;
  std::shared_ptr<const ZarrReader> arrays_;
  std::vector<Leaf> leaves_;
};

}  // namespace tandem::convert
