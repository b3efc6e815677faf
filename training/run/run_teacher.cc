#include "training/run/run_teacher.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/durable_dirs.h"
#include "engine/base/error.h"
#include "engine/base/progress.h"
#include "engine/base/quoted.h"
#include "engine/base/utf8.h"
#include "engine/io/atomic_write.h"
#include "engine/io/mapped_file.h"
#include "engine/io/posix_file.h"
#include "engine/io/sha256.h"
#include "engine/tokenizer/tokenizer.h"
#include "training/setup/teacher_rows.h"
#include "training/teacher/teacher_client.h"

namespace tandem::training {
namespace {

namespace fs = std::filesystem;

// Of one request. A CPU's teacher answers it in about a minute.
constexpr size_t kMostTokens = 8192;
constexpr size_t kMostPrompts = 64;
constexpr size_t kTokensToCompare = 4096;  // of tokenizers, in one request
constexpr size_t kMaxTeacherKeyBytes = 4096;
constexpr size_t kShareBytes = size_t{64} << 20;
constexpr auto kTeacherReportEvery = std::chrono::seconds(30);

std::string Sha256OfText(const std::string& text) {
  return engine::ToHex(engine::Sha256Of(std::as_bytes(std::span(text))));
}

// The batches of a split, in order; absent after the last one.
using NextOfSplit = std::function<std::optional<MicroBatch>()>;

struct Split {
  const char* name;
  std::string samples;  // hash of what decides them
  int64_t n = 0;        // samples, for progress
  NextOfSplit next;
};

std::string KeyFor(const DistillSection& distill) {
  if (distill.teacher_key_file.empty()) {
    const char* const key = std::getenv("TANDEM_TEACHER_KEY");
    return key == nullptr ? "" : key;
  }
  std::string key = engine::ReadWholeFile(distill.teacher_key_file, kMaxTeacherKeyBytes);
  while (key.ends_with('\n') || key.ends_with('\r') || key.ends_with(' ')) key.pop_back();
  return key;
}

// Asks the teacher. Connects, and compares the tokenizers, before the first question only.
class Teacher {
 public:
  explicit Teacher(const TeacherJob& job)
      : job_(job), name_(job.parts.spec.distill.teacher_model) {}

  // The name in the spec; else the one that known figures have; else that of the server's only
  // model.
  const std::string& NameWith(const TeacherFigures* known) {
    if (name_.empty() && known != nullptr) name_ = known->header().teacher;
    if (name_.empty()) name_ = client().model();
    return name_;
  }

  TeacherAnswer Score(std::span<const TeacherPrompt> prompts) {
    if (!std::exchange(is_compared_, true)) CompareTokenizers();
    return client().Score(prompts);
  }

 private:
  TeacherClient& client() {
    if (!client_) {
      const DistillSection& distill = job_.parts.spec.distill;
      TeacherOptions options;
      options.url = distill.teacher_url;
      options.model = name_;
      options.key = KeyFor(distill);
      options.limits = {distill.loss.top_k, job_.parts.files.config.vocab_size};
      client_.emplace(options, job_.stop);
    }
    return *client_;
  }

  // Tokens whose text a server's JSON can hold.
  std::vector<TokenId> TokensWithText() const {
    const engine::Tokenizer& tokenizer = *job_.parts.files.tokenizer;
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
      if (tokenizer.IsSpecial(id)) continue;
      const std::string_view bytes = tokenizer.TokenBytes(id);
      if (!bytes.empty() && IsValidUtf8(bytes)) ids.push_back(id);
    }
    return ids;
  }

  [[noreturn]] void RefuseTokenizer(const std::string& why) {
    throw Error(ErrorCode::kInvalidArgument,
                "distill.teacher_url: the tokenizers of the teacher " + Quoted(name_, 80) +
                    " and of the student differ (" + why +
                    "); distillation compares tokens, so choose a teacher with the student's "
                    "tokenizer");
  }

  void CompareTokenizers() {
    const std::vector<TokenId> ids = TokensWithText();
    for (size_t at = 0; at < ids.size(); at += kTokensToCompare) {
      const auto some = std::span(ids).subspan(at, std::min(kTokensToCompare, ids.size() - at));
      std::optional<std::string> theirs;
      const auto refusal =
          ErrorOf({ErrorCode::kFailedPrecondition}, [&] { theirs = client().TextOf(some); });
      if (refusal) RefuseTokenizer(refusal->what());
      if (!theirs) {
        job_.warn("the teacher's server has no /detokenize, so its tokenizer is not compared");
        return;
      }
      const std::string ours = engine::Decode(*job_.parts.files.tokenizer, some, true);
      if (*theirs != ours) RefuseTokenizer(Difference(some, ours, *theirs));
    }
  }

  static std::string Difference(std::span<const TokenId> ids, const std::string& ours,
                                const std::string& theirs) {
    const auto [mine, other] =
        std::mismatch(ours.begin(), ours.end(), theirs.begin(), theirs.end());
    const auto shown = [](const std::string& text, std::string::const_iterator from) {
      return Quoted(std::string(from, text.end()), 24);
    };
    return "tokens " + std::to_string(ids.front()) + " to " + std::to_string(ids.back()) +
           " spell other texts: there " + shown(theirs, other) + ", here " + shown(ours, mine);
  }

  const TeacherJob& job_;
  std::string name_;
  std::optional<TeacherClient> client_;
  bool is_compared_ = false;
};

// The pass over one split, on the first rank: asks for the samples that the file has not, and
// appends the answers.
class TeacherPass {
 public:
  TeacherPass(const TeacherJob& job, Teacher& teacher, Split& split)
      : job_(job),
        teacher_(teacher),
        split_(split),
        path_(job.dir / "teacher" / split.name),
        header_{"", split.samples, job.parts.spec.distill.loss.top_k} {
    known_ = ReadKnown();
    header_.teacher = teacher.NameWith(known_.get());
    if (known_ && !IsOurs(*known_)) known_.reset();
    is_done_ = known_ && known_->is_complete();
    if (!is_done_) Begin();
  }

  const fs::path& path() const { return path_; }

  // Makes one request. Returns false when none is left; the file is then complete.
  bool Step() {
    if (is_done_) return false;
    const std::vector<TeacherPrompt> prompts = NextPrompts();
    if (prompts.empty()) {
      Append(EncodeTeacherEnd());
      is_done_ = true;
      return false;
    }
    const auto with_advice = [&](const Error& error) {
      return Error(error.code(), std::string(error.what()) + "; " + std::to_string(n_done_) +
                                     " samples are scored, and a new start continues there");
    };
    const TeacherAnswer answer = WithContext(with_advice, [&] { return teacher_.Score(prompts); });
    CheckFingerprint(answer.fingerprint);
    Append(EncodeTeacherFrame(answer.samples, answer.fingerprint));
    n_done_ += static_cast<int64_t>(prompts.size());
    task_->Reach(n_done_);
    ReportProgress();
    return true;
  }

 private:
  std::unique_ptr<const TeacherFigures> ReadKnown() {
    if (!fs::exists(path_)) return nullptr;
    const auto file = engine::MappedFile::Open(path_);
    std::unique_ptr<const TeacherFigures> known;
    const auto damage = ErrorOf({ErrorCode::kDataLoss}, [&] {
      known = std::make_unique<const TeacherFigures>(file, file->bytes(), path_.string());
    });
    if (damage) {
      job_.warn(std::string(damage->what()) + "; the teacher is asked anew");
      return nullptr;
    }
    return known;
  }

  // Whether the figures are those that the spec asks for.
  bool IsOurs(const TeacherFigures& known) const {
    if (known.header() == header_) return true;
    const TeacherHeader& old = known.header();
    const bool is_same = old.teacher == header_.teacher && old.top_k == header_.top_k;
    if (job_.resumes && !is_same) {
      throw Error(ErrorCode::kInvalidArgument,
                  path_.string() + ": the run started with the teacher " + Quoted(old.teacher, 80) +
                      " and distill.top_k " + std::to_string(old.top_k) + ", and the spec has " +
                      Quoted(header_.teacher, 80) + " and " + std::to_string(header_.top_k) +
                      " now; choose another run_name, or set checkpoint.resume=false");
    }
    if (job_.resumes) {
      job_.warn(path_.string() + ": the samples have changed; the teacher is asked anew");
    }
    return false;
  }

  // Keeps the whole frames of an interrupted pass.
  void Begin() {
    MakeDirectories(path_.parent_path());
    if (known_) {
      if (known_->whole_bytes() < fs::file_size(path_)) {
        job_.warn(path_.string() + ": ends with an incomplete or damaged part, which is dropped");
      }
      CopyKnown();
      n_done_ = static_cast<int64_t>(known_->size());
    } else {
      engine::WriteFileAtomically(path_, EncodeTeacherHeader(header_));
    }
    end_ = static_cast<int64_t>(fs::file_size(path_));
    file_ = engine::FileDescriptor(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    if (file_.get() < 0) engine::ThrowSystemError("open", path_, errno);
    task_.emplace("asking the teacher", "samples", split_.n, n_done_);
    job_.report("teacher: " + header_.teacher + " scores " + std::to_string(split_.n - n_done_) +
                " samples of " + split_.name +
                (n_done_ > 0 ? ", after " + std::to_string(n_done_) + " that it has scored" : ""));
  }

  void CopyKnown() {
    if (known_->whole_bytes() == fs::file_size(path_)) return;
    // The map of the old file stays valid: the new one replaces its name.
    const auto file = engine::MappedFile::Open(path_);
    const auto whole = file->bytes().first(known_->whole_bytes());
    engine::WriteFileAtomically(path_, {reinterpret_cast<const char*>(whole.data()), whole.size()});
  }

  void Append(const std::string& bytes) {
    engine::WriteAllAt(file_, std::as_bytes(std::span(bytes)), end_, path_);
    engine::Sync(file_, path_);
    end_ += static_cast<int64_t>(bytes.size());
  }

  std::vector<TeacherPrompt> NextPrompts() {
    std::vector<TeacherPrompt> prompts;
    size_t tokens = 0;
    while (true) {
      while (waiting_.empty()) {
        std::optional<MicroBatch> batch = split_.next();
        if (!batch) return prompts;
        waiting_ = TeacherPromptsOf(*batch, [](int64_t number) { return number; });
        std::erase_if(waiting_, [&](const TeacherPrompt& prompt) {
          return known_ && known_->Has(prompt.sample);
        });
        std::reverse(waiting_.begin(), waiting_.end());
      }
      tokens += waiting_.back().tokens.size();
      if (!prompts.empty() && (tokens > kMostTokens || prompts.size() == kMostPrompts)) {
        return prompts;
      }
      prompts.push_back(std::move(waiting_.back()));
      waiting_.pop_back();
    }
  }

  void CheckFingerprint(const std::string& fingerprint) {
    if (fingerprint.empty()) return;
    if (fingerprint_.empty()) fingerprint_ = known_ ? known_->fingerprint() : "";
    if (fingerprint_.empty()) fingerprint_ = fingerprint;
    if (fingerprint == fingerprint_) return;
    throw Error(ErrorCode::kFailedPrecondition,
                job_.parts.spec.distill.teacher_url + ": the teacher " +
                    Quoted(header_.teacher, 80) +
                    " is another one than at the beginning of the pass (its system_fingerprint "
                    "differs); serve the old one, or delete " +
                    path_.string() + " to ask anew");
  }

  void ReportProgress() {
    const auto now = std::chrono::steady_clock::now();
    if (now - reported_ < kTeacherReportEvery) return;
    reported_ = now;
    job_.report("teacher: " + std::to_string(n_done_) + " of " + std::to_string(split_.n) +
                " samples of " + split_.name);
  }

  const TeacherJob& job_;
  Teacher& teacher_;
  Split& split_;
  const fs::path path_;
  TeacherHeader header_;
  std::unique_ptr<const TeacherFigures> known_;  // of an earlier pass
  std::vector<TeacherPrompt> waiting_;           // of the last batch, in reverse
  std::string fingerprint_;
  engine::FileDescriptor file_;
  int64_t end_ = 0;
  int64_t n_done_ = 0;
  bool is_done_ = false;
  std::optional<ProgressTask> task_;
  std::chrono::steady_clock::time_point reported_ = std::chrono::steady_clock::now();
};

// Gives the first rank's bytes to the others, in parts.
std::vector<std::byte> ShareBytes(Collectives& ranks, std::span<const std::byte> mine) {
  const auto own = static_cast<double>(mine.size());
  std::vector<std::byte> bytes(
      static_cast<size_t>(ranks.AllGather(std::span<const double>(&own, 1)).front()));
  if (ranks.is_first()) std::copy(mine.begin(), mine.end(), bytes.begin());
  for (size_t at = 0; at < bytes.size(); at += kShareBytes) {
    ranks.Broadcast(std::span(bytes).subspan(at, std::min(kShareBytes, bytes.size() - at)), 0);
  }
  return bytes;
}

// Null after a stop request. A rank waits for the others after each request, so never for longer
// than a request takes.
std::shared_ptr<const TeacherFigures> Gather(const TeacherJob& job, Teacher& teacher, Split split) {
  Collectives* const ranks = job.parts.ranks;
  const auto any = [&](bool mine) { return ranks == nullptr ? mine : ranks->AnyRank(mine); };
  std::optional<TeacherPass> pass;
  while (true) {
    bool stops = job.stop.stop_requested();
    bool more = false;
    if (job.parts.is_first_rank() && !stops) {
      const auto cancelled = ErrorOf({ErrorCode::kCancelled}, [&] {
        if (!pass) pass.emplace(job, teacher, split);
        more = pass->Step();
      });
      stops = cancelled.has_value();
    }
    if (any(stops)) return nullptr;
    if (!any(more)) break;
  }
  std::shared_ptr<const engine::MappedFile> file;
  if (pass) file = engine::MappedFile::Open(pass->path());
  const std::string name = std::string("teacher/") + split.name;
  std::shared_ptr<const TeacherFigures> figures;
  if (ranks == nullptr || ranks->size() == 1) {
    figures = std::make_shared<const TeacherFigures>(file, file->bytes(), name);
  } else {
    const auto bytes = std::make_shared<const std::vector<std::byte>>(
        ShareBytes(*ranks, file ? file->bytes() : std::span<const std::byte>()));
    figures = std::make_shared<const TeacherFigures>(bytes, std::span(*bytes), name);
  }
  TANDEM_CHECK(figures->is_complete());
  return figures;
}

Split TrainSplit(const TeacherJob& job) {
  RunParts& parts = job.parts;
  PackerOptions options = PackerOptionsOf(parts.spec, parts.data);
  options.mixture.clear();  // every sample once, with its index as its number
  options.shuffle = false;
  options.n_epochs = 1;
  const auto packer = std::make_shared<Packer>(
      options, [&parts](int64_t i) { return MakeSample(parts.spec, parts.data, i); });
  const TokIdentity identity = IdentityOf(parts.spec, parts.files);
  const DataSection& data = parts.spec.data;
  const std::string samples = parts.data_sha256 + " " + identity.tokenizer_sha256 + " " +
                              identity.template_sha256 + " " + identity.options + " " +
                              std::to_string(parts.data.source->size()) + " " +
                              std::to_string(data.max_target_length) + " " +
                              std::to_string(static_cast<int>(data.overflow));
  return {"train", Sha256OfText(samples), parts.data.source->size(),
          [packer]() -> std::optional<MicroBatch> {
            PackedRow row;
            if (!packer->Next(&row)) return std::nullopt;
            MicroBatch batch;
            batch.Append(row);
            return batch;
          }};
}

Split EvalSplit(const TeacherJob& job) {
  const std::span<const MicroBatch> batches = std::as_const(*job.validation).batches();
  engine::Sha256 hash;
  int64_t n = 0;
  for (const MicroBatch& batch : batches) {
    hash.Update(std::as_bytes(std::span(batch.tokens)));
    hash.Update(std::as_bytes(std::span(batch.targets)));
    n +=
        static_cast<int64_t>(TeacherPromptsOf(batch, [](int64_t number) { return number; }).size());
  }
  return {"eval", engine::ToHex(hash.Finish()), n,
          [batches, i = size_t{0}]() mutable -> std::optional<MicroBatch> {
            if (i == batches.size()) return std::nullopt;
            return batches[i++];
          }};
}

}  // namespace

void PrepareTeacher(const TeacherJob& job) {
  Teacher teacher(job);
  auto train = Gather(job, teacher, TrainSplit(job));
  if (!train) return;
  if (job.validation != nullptr) {
    const auto eval = Gather(job, teacher, EvalSplit(job));
    if (!eval) return;
    for (MicroBatch& batch : job.validation->batches()) {
      FillTeacherRows(
          *eval, [](int64_t number) { return number; }, &batch);
    }
  }
  job.parts.teacher = std::move(train);
}

}  // namespace tandem::training
