#include "engine/objects/transfer.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/thread_group.h"
#include "engine/base/thread_name.h"
#include "engine/hub/download.h"
#include "engine/hub/partial_blob.h"
#include "engine/io/posix_file.h"

namespace tandem::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::milliseconds kTurnPoll{50};
constexpr uint64_t kMostParts = 10'000;  // of one upload, by the interface of S3
constexpr uint64_t kPartGranule = uint64_t{1} << 20;

void RunConnections(ObjectStore& store, const std::function<void(ObjectClient& client)>& work,
                    ThreadGroup& group) {
  const auto run = [&] {
    NameThisThread("tandem-objects");
    ObjectClient client(store);
    work(client);
  };
  StartWorkers(static_cast<size_t>(std::max(1, store.options().http.connections)),
               [&] { group.Add(run); });
  group.Wait();
}

fs::path IncompleteName(fs::path path) {
  path += ".incomplete";
  return path;
}

// Memory that a thread uses for one piece after the other. Not set to zero, because each piece
// overwrites it.
class TransferBuffer {
 public:
  std::span<char> Of(size_t n) {
    if (n > size_) bytes_ = std::make_unique_for_overwrite<char[]>(n);
    size_ = std::max(size_, n);
    return {bytes_.get(), n};
  }

 private:
  std::unique_ptr<char[]> bytes_;
  size_t size_ = 0;
};

// Segments are handed out in the order of the files and of their bytes. A thread fetches its
// segment into memory and waits for its turn to append it, so each thread holds one segment. The
// first segment that is not on disk waits for nothing: some thread always goes on.
class Fetching {
 public:
  Fetching(ObjectStore& store, std::vector<ObjectToFetch> files, const OnObjectBytes& on_bytes)
      : store_(store),
        on_bytes_(on_bytes),
        segment_bytes_(std::max<uint64_t>(1, store.options().segment_bytes)),
        group_([&store] { store.http().RequestStop(); }) {
    for (ObjectToFetch& file : files) {
      files_.push_back(std::make_unique<File>());
      files_.back()->wanted = std::move(file);
    }
    // Small files first: faults in a model's description show before its weights are fetched.
    std::stable_sort(files_.begin(), files_.end(), [](const auto& a, const auto& b) {
      return a->wanted.info.size < b->wanted.info.size;
    });
  }

  void Run() {
    RunConnections(
        store_, [this](ObjectClient& client) { Work(client); }, group_);
  }

 private:
  struct File {
    ObjectToFetch wanted;
    std::unique_ptr<PartialBlob> partial;  // of the thread whose turn it is
    uint64_t next = 0;                     // first byte that is not handed out
    uint64_t on_disk = 0;
  };
  struct Segment {
    File* file;
    uint64_t begin;
    uint64_t end;
  };

  void Work(ObjectClient& client) {
    TransferBuffer buffer;
    while (const std::optional<Segment> segment = Next()) {
      File& file = *segment->file;
      const std::span<char> bytes = buffer.Of(segment->end - segment->begin);
      client.ReadRange(file.wanted.info, segment->begin, bytes);
      if (!WaitForTurn(*segment)) return;
      file.partial->Append(bytes);
      on_bytes_(bytes.size());
      const bool is_whole = segment->end == file.wanted.info.size;
      if (is_whole) Publish(file);
      const std::lock_guard lock(mutex_);
      file.on_disk = segment->end;
      turn_.notify_all();
    }
  }

  std::optional<Segment> Next() {
    const std::lock_guard lock(mutex_);
    for (; current_ < files_.size(); ++current_) {
      if (group_.stopping()) return std::nullopt;
      store_.http().stop.ThrowIfStopped();
      File& file = *files_[current_];
      const uint64_t size = file.wanted.info.size;
      if (!file.partial) {
        file.partial =
            std::make_unique<PartialBlob>(IncompleteName(file.wanted.path),
                                          BlobIdentity{"", size, BlobIdentity::Hash::kNone, ""});
        file.next = file.on_disk = file.partial->size();
        if (file.next > 0) {
          on_bytes_(file.next);
          spdlog::info("objects_resume object=\"{}\" bytes={} of={}",
                       EscapeJson(store_.Name(file.wanted.info.key)), file.next, size);
        }
        if (file.next == size) Publish(file);
      }
      if (file.next == size) continue;
      const uint64_t begin = file.next;
      file.next += std::min(segment_bytes_, size - begin);
      return Segment{&file, begin, file.next};
    }
    return std::nullopt;
  }

  // Returns false when the transfer has failed meanwhile.
  bool WaitForTurn(const Segment& segment) {
    std::unique_lock lock(mutex_);
    while (segment.file->on_disk != segment.begin) {
      if (group_.stopping()) return false;
      turn_.wait_for(lock, kTurnPoll);
    }
    return true;
  }

  static void Publish(File& file) {
    TANDEM_CHECK(file.partial->Verify());
    file.partial->Publish(file.wanted.path);
  }

  ObjectStore& store_;
  const OnObjectBytes& on_bytes_;
  const uint64_t segment_bytes_;
  std::mutex mutex_;  // guards current_ and the files, except `partial` (see WaitForTurn)
  std::condition_variable turn_;
  std::vector<std::unique_ptr<File>> files_;
  size_t current_ = 0;
  ThreadGroup group_;  // last: its threads use the members above
};

class Uploading {
 public:
  Uploading(ObjectStore& store, const std::vector<FileToUpload>& files,
            const OnObjectBytes& on_bytes)
      : store_(store), on_bytes_(on_bytes), group_([&store] { store.http().RequestStop(); }) {
    for (const FileToUpload& file : files) {
      files_.push_back(std::make_unique<File>());
      files_.back()->wanted = file;
    }
  }

  void Run() {
    UndoOnFailure(
        [this] {
          RunConnections(
              store_, [this](ObjectClient& client) { Work(client); }, group_);
        },
        [this] { AbortAll(); });
  }

 private:
  struct File {
    FileToUpload wanted;
    FileDescriptor file;  // open until the last byte is sent
    uint64_t size = 0;
    uint64_t part_bytes = 0;
    uint64_t next = 0;   // first byte that is not handed out
    std::string upload;  // id; empty: not begun, ended, or sent as one request
    bool is_open = false;
    std::vector<std::string> etags;
    size_t n_left = 0;  // parts that are not sent yet
  };
  struct Part {
    File* file;
    size_t index;
    uint64_t begin;
    uint64_t end;
  };

  void Work(ObjectClient& client) {
    while (const std::optional<Part> part = Next(client)) {
      File& file = *part->file;
      const ObjectBody body = BodyOf(*part);
      const std::string& key = file.wanted.key;
      if (file.etags.empty()) {
        client.Put(key, body);
        file.file = FileDescriptor();
        on_bytes_(body.n_bytes);
        continue;
      }
      file.etags[part->index] =
          client.PutPart(key, file.upload, static_cast<int>(part->index + 1), body);
      on_bytes_(body.n_bytes);
      {
        const std::lock_guard lock(mutex_);
        if (--file.n_left > 0) continue;
      }
      Finish(client, file);
    }
  }

  static ObjectBody BodyOf(const Part& part) {
    return {part.end - part.begin, [part](uint64_t offset, std::span<char> out) {
              ReadAllAt(part.file->file, std::as_writable_bytes(out),
                        static_cast<int64_t>(part.begin + offset), part.file->wanted.path);
            }};
  }

  // Opens the next file and begins its upload under the lock: parts need the upload's id.
  std::optional<Part> Next(ObjectClient& client) {
    const std::lock_guard lock(mutex_);
    for (; current_ < files_.size(); ++current_) {
      if (group_.stopping()) return std::nullopt;
      store_.http().stop.ThrowIfStopped();
      File& file = *files_[current_];
      if (!file.is_open)
        Open(client, file);
      else if (file.next == file.size)
        continue;
      const uint64_t begin = file.next;
      file.next += std::min(file.part_bytes, file.size - begin);
      Part part{&file, static_cast<size_t>(begin / file.part_bytes), begin, file.next};
      if (file.next == file.size) ++current_;
      return part;
    }
    return std::nullopt;
  }

  void Open(ObjectClient& client, File& file) {
    struct stat status {};
    file.file = OpenRegularFile(file.wanted.path, status);
    file.is_open = true;
    file.size = static_cast<uint64_t>(status.st_size);
    const uint64_t least = file.size / kMostParts + 1;
    file.part_bytes = std::max<uint64_t>(1, store_.options().part_bytes);
    if (least > file.part_bytes) {
      file.part_bytes = (least + kPartGranule - 1) / kPartGranule * kPartGranule;
    }
    if (file.size <= file.part_bytes) return;
    file.n_left = static_cast<size_t>((file.size + file.part_bytes - 1) / file.part_bytes);
    file.upload = client.BeginUpload(file.wanted.key);
    file.etags.resize(file.n_left);
  }

  void Finish(ObjectClient& client, File& file) {
    file.file = FileDescriptor();
    const std::string& key = file.wanted.key;
    const auto lost =
        ErrorOf({ErrorCode::kNotFound}, [&] { client.FinishUpload(key, file.upload, file.etags); });
    if (lost) {
      // A repeated request may find that the first one has ended the upload.
      const std::optional<ObjectInfo> there = client.Find(key);
      if (!there || there->size != file.size) throw Error(*lost);
    }
    const std::lock_guard lock(mutex_);
    file.upload.clear();
  }

  // After a failure. The stop of the transfer does not apply to these requests.
  void AbortAll() noexcept {
    for (const std::unique_ptr<File>& file : files_) {
      if (file->upload.empty()) continue;
      const auto failed = Attempt([&] {
        ObjectOptions options = store_.options();
        options.http.max_attempts = 2;
        ObjectStore fresh(store_.place(), std::move(options));
        ObjectClient(fresh).AbortUpload(file->wanted.key, file->upload);
      });
      if (!failed) continue;
      spdlog::warn("objects_parts_left object=\"{}\" reason=\"{}\"",
                   EscapeJson(store_.Name(file->wanted.key)), failed->what());
    }
  }

  ObjectStore& store_;
  const OnObjectBytes& on_bytes_;
  std::mutex mutex_;  // guards current_, n_left, and the files that are not open
  std::vector<std::unique_ptr<File>> files_;
  size_t current_ = 0;
  ThreadGroup group_;  // last: its threads use the members above
};

}  // namespace

void FetchObjects(ObjectStore& store, std::vector<ObjectToFetch> files,
                  const OnObjectBytes& on_bytes) {
  if (files.empty()) return;
  Fetching(store, std::move(files), on_bytes).Run();
}

void UploadFiles(ObjectStore& store, const std::vector<FileToUpload>& files,
                 const OnObjectBytes& on_bytes) {
  if (files.empty()) return;
  Uploading(store, files, on_bytes).Run();
}

}  // namespace tandem::engine
