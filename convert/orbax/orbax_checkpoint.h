#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "convert/orbax/zarr.h"
#include "convert/orbax/zarr_reader.h"

namespace tandem::convert {

// An Orbax checkpoint (MaxText, Tunix, Flax): a tree whose leaves are arrays. All four variants are
// recognised by their files: OCDBT or a directory per array, zarr 2 or 3. Immutable; any thread.
class OrbaxCheckpoint {
 public:
  struct Leaf {
    std::vector<std::string> path;   // keys of the tree: "params", "params", "decoder", …
    std::string value_type;          // "jax.Array", "scalar", "None", …; empty: unknown
    std::optional<ZarrArray> array;  // none for empty nodes and texts
    std::string name() const;        // joined by dots; the array's name in the store
  };

  // Opens a directory of steps ("100", "step_100") at its last finished step, a step, or one item
  // of a step (`items`, `model_params`, …). A leaf with an unsupported element type is listed;
  // reading it throws. Throws kNotFound, kDataLoss, and kUnsupported for other directories,
  // unfinished steps, and steps with several items (naming them).
  static OrbaxCheckpoint Open(const std::filesystem::path& path);
  // Whether `path` is an Orbax checkpoint, even one that Open refuses.
  static bool Is(const std::filesystem::path& path);

  const std::filesystem::path& item_dir() const { return dir_; }
  bool is_ocdbt() const { return is_ocdbt_; }
  const std::vector<Leaf>& leaves() const { return leaves_; }  // ascending by path

  // Throws kDataLoss for chunks that are missing or too small for the shape (ZarrReader). Call it
  // before allocating the array's bytes.
  void CheckStored(const Leaf& leaf) const;
  // Read the elements of a leaf with an array, on all threads of parallel_for (ZarrReader).
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
