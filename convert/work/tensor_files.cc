#include "convert/work/tensor_files.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>

#include "convert/work/journal.h"
#include "convert/work/pieces.h"
#include "engine/base/check.h"
#include "engine/formats/safetensors/safetensors_stream.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"

// Threads copy tensors into place, roughly in the order of the files. A second thread syncs
// finished tensors and journals them. Further threads hash each file from its beginning, up to
// the bytes already written. Disk, hash and copy overlap, so the slowest of them sets the time.

namespace tandem::convert {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// One source tensor in a file.
struct Place {
  int64_t tensor;
  int64_t offset;  // bytes from the beginning of the file
  int64_t bytes;
  int64_t written = 0;                    // contiguous bytes from the tensor's start
  std::map<int64_t, int64_t> ahead = {};  // begin -> end of pieces beyond them
  bool done() const { return written == bytes; }

  // Records the piece [begin, end); pieces arrive in any order.
  void Add(int64_t begin, int64_t end) {
    const auto next = ahead.lower_bound(begin);
    if (next != ahead.end() && next->first == end) {
      end = next->second;
      ahead.erase(next);
    }
    const auto after = ahead.lower_bound(begin);
    if (after != ahead.begin() && std::prev(after)->second == begin) {
      std::prev(after)->second = end;
    } else {
      ahead.emplace_hint(after, begin, end);
    }
    if (ahead.begin()->first != written) return;
    written = ahead.begin()->second;
    ahead.erase(ahead.begin());
  }
};

struct File {
  std::string name;
  fs::path path;
  engine::FileDescriptor descriptor;
  engine::SafetensorsLayout layout;
  std::vector<Place> places;  // in file order
  engine::Sha256Digest sha256 = {};
  // File systems let one thread at a time write into a file; the others would spin.
  std::unique_ptr<std::mutex> writing = std::make_unique<std::mutex>();
};

struct PlaceRef {
  size_t file;
  size_t place;
};

class Writer {
 public:
  Writer(const ModelSource& source, const std::vector<OutFile>& files, const WriteContext& context)
      : source_(source), context_(context), place_of_(source.tensors().size()) {
    for (const OutFile& file : files) Plan(file);
  }

  std::vector<WrittenFile> Run() {
    for (File& file : files_) Prepare(file);
    CountDone();
    BudgetedQueue queue(PartsInOrder(), [&](int64_t part) { return source_.PartMemory(part); });
    const int n_threads = context_.ops.pool().n_threads();
    ThreadGroup group;  // last: its threads use all of the above
    for (int i = 0; i < n_threads; ++i) {
      group.Add([&] {
        queue.Drain(group, [&](int64_t part, const ParallelFor& parallel_for) {
          Copy(part, parallel_for, group);
        });
      });
    }
    if (context_.journal != nullptr) group.Add([&] { SyncBehindWriters(group); });
    for (int i = 0; i < std::min<int>(n_threads, static_cast<int>(files_.size())); ++i) {
      group.Add([&] { HashBehind(group); });
    }
    group.Wait([&] { context_.advance(copied_.exchange(0)); });
    std::vector<WrittenFile> written;
    engine::FileHashes hashes;
    for (File& file : files_) {
      file.descriptor.Close(file.path);
      written.push_back({file.name, file.layout.file_bytes, file.sha256});
      hashes[file.name] = file.sha256;
    }
    context_.hashed(hashes);
    return written;
  }

 private:
  void Plan(const OutFile& out) {
    std::vector<engine::NamedTensor> tensors;
    for (const OutTensor& tensor : out.tensors) tensors.push_back(tensor.tensor);
    File file;
    file.name = out.name;
    file.path = context_.target / out.name;
    file.layout = engine::LayOutSafetensors(tensors, {{"format", "pt"}});
    for (const engine::SafetensorsLayout::Place& at : file.layout.places) {
      int64_t offset = at.offset;
      for (const int64_t tensor : out.tensors[at.tensor].sources) {
        const auto bytes =
            static_cast<int64_t>(source_.tensors()[static_cast<size_t>(tensor)].view.bytes());
        place_of_[static_cast<size_t>(tensor)] = {files_.size(), file.places.size()};
        file.places.push_back({tensor, offset, bytes});
        offset += bytes;
      }
    }
    files_.push_back(std::move(file));
  }

  // Opens the file for resuming if the journal allows it, else starts it anew.
  void Prepare(File& file) {
    file.descriptor =
        engine::FileDescriptor(open(file.path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    if (file.descriptor.get() < 0) engine::ThrowSystemError("create", file.path, errno);
    struct stat status {};
    if (fstat(file.descriptor.get(), &status) != 0) {
      engine::ThrowSystemError("inspect", file.path, errno);
    }
    const bool supports_resume =
        status.st_size == file.layout.file_bytes && context_.journal != nullptr;
    if (!supports_resume && context_.journal != nullptr) context_.journal->Drop(file.name);
    engine::Reserve(file.descriptor, file.layout.file_bytes, file.path);
    engine::WriteAllAt(file.descriptor, std::as_bytes(std::span(file.layout.header)), 0, file.path);
    for (Place& place : file.places) {
      const bool is_there = supports_resume && context_.journal->Has(file.name, place.tensor);
      place.written = is_there ? place.bytes : 0;
    }
  }

  void CountDone() {
    for (const File& file : files_) {
      for (const Place& place : file.places) {
        if (place.done()) {
          copied_ += place.bytes;
        } else {
          ++left_;
        }
      }
    }
  }

  Place& PlaceOf(int64_t tensor) {
    const PlaceRef& at = place_of_[static_cast<size_t>(tensor)];
    return files_[at.file].places[at.place];
  }

  // Returns the unfinished parts, ordered by where their first tensor goes.
  std::vector<int64_t> PartsInOrder() {
    std::vector<std::pair<std::pair<size_t, size_t>, int64_t>> parts;
    for (int64_t part = 0; part < source_.parts(); ++part) {
      std::pair<size_t, size_t> first{files_.size(), 0};
      bool is_done = true;
      for (const int64_t tensor : source_.TensorsOf(part)) {
        const PlaceRef& at = place_of_[static_cast<size_t>(tensor)];
        first = std::min(first, {at.file, at.place});
        is_done = is_done && PlaceOf(tensor).done();
      }
      if (!is_done) parts.push_back({first, part});
    }
    std::sort(parts.begin(), parts.end());
    std::vector<int64_t> order;
    order.reserve(parts.size());
    for (const auto& [first, part] : parts) order.push_back(part);
    return order;
  }

  void Copy(int64_t part, const ParallelFor& parallel_for, const ThreadGroup& group) {
    const auto copy = [&](const engine::NamedTensor& tensor, int64_t from,
                          ModelSource::Bytes bytes) {
      const PlaceRef& at = place_of_[static_cast<size_t>(source_.Find(tensor.name))];
      const Place& place = files_[at.file].places[at.place];
      TANDEM_CHECK(from >= 0 && from <= place.bytes &&
                   static_cast<int64_t>(bytes.size()) <= place.bytes - from);
      {
        const std::lock_guard lock(mutex_);
        if (place.done()) return;
      }
      InPieces(source_, bytes, group, [&](ModelSource::Bytes piece, size_t offset) {
        WritePiece(at, piece, from + static_cast<int64_t>(offset));
      });
    };
    source_.ReadPieces(part, parallel_for, copy);
  }

  void WritePiece(const PlaceRef& at, ModelSource::Bytes piece, int64_t offset) {
    File& file = files_[at.file];
    Place& place = file.places[at.place];
    {
      const std::lock_guard one_at_a_time(*file.writing);
      engine::WriteAllAt(file.descriptor, piece, place.offset + offset, file.path);
    }
    const auto bytes = static_cast<int64_t>(piece.size());
    copied_ += bytes;
    const std::lock_guard lock(mutex_);
    place.Add(offset, offset + bytes);
    if (place.done()) {
      --left_;
      finished_.push_back(at);
    }
    changed_.notify_all();
  }

  // Returns the tensors finished since the last call. Empty when all are written or the group
  // stops.
  std::vector<PlaceRef> TakeFinished(const ThreadGroup& group) {
    std::unique_lock lock(mutex_);
    while (finished_.empty() && left_ > 0 && !group.stopping()) changed_.wait_for(lock, 50ms);
    return group.stopping() ? std::vector<PlaceRef>{} : std::exchange(finished_, {});
  }

  void SyncBehindWriters(const ThreadGroup& group) {
    // Syncs the directories too, for the names of the files.
    for (fs::path dir = context_.target; const int level : {0, 1, 2}) {
      engine::SyncPath(dir);
      if (level < 2) dir = engine::ParentOf(dir);
    }
    for (auto batch = TakeFinished(group); !batch.empty(); batch = TakeFinished(group)) {
      std::vector<Journal::Entry> entries;
      std::vector<bool> touched(files_.size());
      for (const PlaceRef& at : batch) {
        touched[at.file] = true;
        entries.push_back({files_[at.file].name, files_[at.file].places[at.place].tensor});
      }
      for (size_t i = 0; i < files_.size(); ++i) {
        if (touched[i]) engine::Sync(files_[i].descriptor, files_[i].path);
      }
      context_.journal->Add(entries);
    }
  }

  void HashBehind(const ThreadGroup& group) {
    for (size_t i = next_hashed_++; i < files_.size(); i = next_hashed_++) {
      File& file = files_[i];
      engine::Sha256 sha;
      sha.Update(file.layout.header);
      for (const Place& place : file.places) {
        HashPlace(file, place, group, &sha);
      }
      file.sha256 = sha.Finish();
    }
  }

  // Waits until more than `at` bytes of the tensor are written and returns how many are. Returns
  // `at` when the group stops.
  int64_t WaitFor(const Place& place, int64_t at, const ThreadGroup& group) {
    std::unique_lock lock(mutex_);
    while (place.written <= at && !group.stopping()) changed_.wait_for(lock, 50ms);
    return group.stopping() ? at : place.written;
  }

  // Reads from the file, close behind its writers, so that the hash covers what readers will find.
  void HashPlace(const File& file, const Place& place, const ThreadGroup& group,
                 engine::Sha256* sha) {
    constexpr int64_t kPieceBytes = int64_t{1} << 20;
    std::vector<std::byte> buffer(static_cast<size_t>(std::min(kPieceBytes, place.bytes)));
    int64_t there = 0;
    for (int64_t at = 0; at < place.bytes;) {
      if (at == there) there = WaitFor(place, at, group);
      if (group.stopping()) return;
      const auto piece =
          std::span(buffer).first(static_cast<size_t>(std::min(kPieceBytes, there - at)));
      engine::ReadAllAt(file.descriptor, piece, place.offset + at, file.path);
      sha->Update(piece);
      at += static_cast<int64_t>(piece.size());
    }
  }

  const ModelSource& source_;
  const WriteContext& context_;
  std::vector<File> files_;
  std::vector<PlaceRef> place_of_;  // by source tensor
  std::atomic<int64_t> copied_{0};  // bytes not yet reported through advance()
  std::atomic<size_t> next_hashed_{0};
  std::mutex mutex_;  // guards the members below, Place::written and Place::ahead
  std::condition_variable changed_;
  int64_t left_ = 0;                // tensors not yet written
  std::vector<PlaceRef> finished_;  // written but not yet synced
};

}  // namespace

std::vector<WrittenFile> WriteTensorFiles(const ModelSource& source,
                                          const std::vector<OutFile>& files,
                                          const WriteContext& context) {
  return Writer(source, files, context).Run();
}

}  // namespace tandem::convert
