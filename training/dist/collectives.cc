#include "training/dist/collectives.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "engine/base/attempt.h"
#include "engine/base/check.h"
#include "engine/base/thread_name.h"

namespace tandem::training {
namespace {

// Elements of one rank's part in one call: a bound of the staging buffers, not of the data.
constexpr int64_t kPieceElements = int64_t{1} << 20;
static_assert(kPieceElements * 4 <= Transport::kMostBytesPerCall);

void Add(const float* from, float* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += from[i];
}

// Adds the parts of `received`, one per rank, in a tree; the first part becomes the sum.
void SumParts(std::byte* received, int64_t elements, int ranks) {
  auto* parts = reinterpret_cast<float*>(received);
  for (int step = 1; step < ranks; step *= 2) {
    for (int i = 0; i + step < ranks; i += 2 * step) {
      Add(parts + (i + step) * elements, parts + i * elements, elements);
    }
  }
}

void GrowTo(int64_t bytes, AlignedBuffer* buffer) {
  const auto wanted = static_cast<size_t>(bytes);
  if (buffer->size() < wanted) *buffer = AlignedBuffer(wanted);
}

}  // namespace

Collectives::Collectives(const OpenTransport& open, Options options)
    : options_(std::move(options)) {
  std::promise<void> opened;
  std::future<void> is_open = opened.get_future();
  thread_ = std::thread([this, &open, opened = std::move(opened)]() mutable {
    NameThisThread("tandem-ranks");
    const std::exception_ptr fault = FaultOf([&] { transport_ = open(); });
    if (fault) return opened.set_exception(fault);
    rank_ = transport_->rank();
    size_ = transport_->size();
    places_.fill({rank_, size_});
    opened.set_value();
    Serve();
    groups_ = {};
    transport_.reset();
  });
  UndoOnFailure([&] { is_open.get(); }, [this] { thread_.join(); });
}

Collectives::~Collectives() {
  if (!finished_) transport_->Abort();
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Collectives::Serve() {
  while (true) {
    Call call;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (queue_.empty()) return;
      call = std::move(queue_.front());
      queue_.pop();
    }
    call.run();  // keeps a fault in its future
  }
}

Collectives::Ticket Collectives::Start(const char* what, std::function<void()> run) {
  std::packaged_task<void()> task(std::move(run));
  started_.emplace_back(what, task.get_future());
  {
    const std::lock_guard lock(mutex_);
    queue_.push({what, std::move(task)});
  }
  changed_.notify_all();
  return first_started_ + started_.size() - 1;
}

void Collectives::WaitForOne(const char* what, std::future<void>* done) {
  if (options_.timeout_s > 0) {
    const auto limit = std::chrono::duration<double>(options_.timeout_s);
    if (done->wait_for(limit) != std::future_status::ready) {
      char text[200];
      std::snprintf(text, sizeof text,
                    "rank %d has waited %g s for the other ranks in %s: one of them hangs or is "
                    "lost (--rank-timeout)",
                    rank_, options_.timeout_s, what);
      if (options_.on_timeout) options_.on_timeout(text);
      transport_->Abort();
      done->wait();
      throw Error(ErrorCode::kDeadlineExceeded, text);
    }
  }
  done->get();
}

void Collectives::Wait() {
  if (!started_.empty()) WaitFor(first_started_ + started_.size() - 1);
}

void Collectives::WaitFor(Ticket ticket) {
  while (!started_.empty() && first_started_ <= ticket) {
    auto [what, done] = std::move(started_.front());
    started_.pop_front();
    ++first_started_;
    const std::exception_ptr fault =
        FaultOf([&, what = what, &done = done] { WaitForOne(what, &done); });
    if (!fault) continue;
    Abandon();  // nobody may free the data of the others before they have ended
    transport_->Abort();
    std::rethrow_exception(fault);
  }
}

void Collectives::Abandon() {
  if (started_.empty()) return;
  transport_->Abort();
  first_started_ += started_.size();
  for (auto& [what, done] : started_) done.wait();
  started_.clear();
}

void Collectives::Do(const char* what, std::function<void()> run) {
  Start(what, std::move(run));
  Wait();
}

void Collectives::Finish() {
  Do("the end of the run", [this] { transport_->Finish(); });
  finished_ = true;
}

Transport& Collectives::Of(Group group) {
  const std::unique_ptr<Transport>& part = groups_[static_cast<size_t>(group)];
  return part ? *part : *transport_;
}

void Collectives::Arrange(int fsdp, int tensor) {
  TANDEM_CHECK(fsdp >= 1 && tensor >= 1 && size_ % (fsdp * tensor) == 0);
  const auto form = [this](Group group, int color, Place place) {
    places_[static_cast<size_t>(group)] = place;
    if (place.size == 1 || place.size == size_) return;
    Do("forming groups of ranks",
       [this, group, color] { groups_[static_cast<size_t>(group)] = transport_->Split(color); });
  };
  const int replica = fsdp * tensor;
  const int part = rank_ % tensor;
  form(Group::kFsdp, rank_ / replica * tensor + part, {rank_ / tensor % fsdp, fsdp});
  form(Group::kData, rank_ % replica, {rank_ / replica, size_ / replica});
  form(Group::kTensor, rank_ / tensor, {part, tensor});
  form(Group::kRows, part, {rank_ / tensor, size_ / tensor});
}

void Collectives::AllReduceNow(std::span<float> data, Transport& transport) {
  const auto n = static_cast<int64_t>(data.size());
  const int ranks = transport.size();
  const int64_t window = kPieceElements * ranks;
  for (int64_t at = 0; at < n; at += window) {
    const int64_t count = std::min(window, n - at);
    const int64_t piece = (count + ranks - 1) / ranks;
    const int64_t bytes = piece * static_cast<int64_t>(sizeof(float));
    GrowTo(bytes * ranks, &received_);
    float* from = data.data() + at;
    std::byte* all = reinterpret_cast<std::byte*>(from);
    if (piece * ranks != count) {
      GrowTo(bytes * ranks, &staging_);
      all = staging_.data();
      std::memset(all, 0, static_cast<size_t>(bytes * ranks));
      std::memcpy(all, from, static_cast<size_t>(count) * sizeof(float));
    }
    transport.AllToAll(all, received_.data(), bytes);
    SumParts(received_.data(), piece, ranks);
    transport.AllGather(received_.data(), all, bytes);
    if (piece * ranks != count) std::memcpy(from, all, static_cast<size_t>(count) * sizeof(float));
  }
}

void Collectives::ReduceScatterNow(std::span<float> data, Transport& transport) {
  const auto n = static_cast<int64_t>(data.size());
  const int ranks = transport.size();
  TANDEM_CHECK(n % ranks == 0);
  const int64_t part = n / ranks;
  for (int64_t at = 0; at < part; at += kPieceElements) {
    const int64_t piece = std::min(kPieceElements, part - at);
    const int64_t bytes = piece * static_cast<int64_t>(sizeof(float));
    GrowTo(bytes * ranks, &received_);
    const std::byte* from = reinterpret_cast<const std::byte*>(data.data());
    if (piece != part) {
      GrowTo(bytes * ranks, &staging_);
      for (int r = 0; r < ranks; ++r) {
        std::memcpy(staging_.data() + r * bytes, data.data() + r * part + at,
                    static_cast<size_t>(bytes));
      }
      from = staging_.data();
    }
    transport.AllToAll(from, received_.data(), bytes);
    SumParts(received_.data(), piece, ranks);
    std::memcpy(data.data() + transport.rank() * part + at, received_.data(),
                static_cast<size_t>(bytes));
  }
}

void Collectives::AllGatherNow(std::span<const std::byte> mine, std::span<std::byte> all,
                               Transport& transport) {
  constexpr int64_t kMost = kPieceElements * 4;
  const int ranks = transport.size();
  const auto part = static_cast<int64_t>(mine.size());
  TANDEM_CHECK(all.size() == mine.size() * static_cast<size_t>(ranks));
  const bool in_place = mine.data() == all.data() + transport.rank() * part;
  for (int64_t at = 0; at < part; at += kMost) {
    const int64_t bytes = std::min(kMost, part - at);
    if (bytes == part && !in_place) return transport.AllGather(mine.data(), all.data(), bytes);
    GrowTo(bytes * ranks, &received_);
    transport.AllGather(mine.data() + at, received_.data(), bytes);
    for (int r = 0; r < ranks; ++r) {
      if (in_place && r == transport.rank()) continue;
      std::memcpy(all.data() + r * part + at, received_.data() + r * bytes,
                  static_cast<size_t>(bytes));
    }
  }
}

Collectives::Ticket Collectives::StartAllReduce(std::span<float> data, Group group) {
  if (size_of(group) == 1) return 0;
  return Start("a sum over ranks", [this, data, group] { AllReduceNow(data, Of(group)); });
}

Collectives::Ticket Collectives::StartReduceScatter(std::span<float> data, Group group,
                                                    std::function<void()> then) {
  if (size_of(group) == 1 && !then) return 0;
  return Start("a sum over ranks", [this, data, group, then = std::move(then)] {
    if (size_of(group) > 1) ReduceScatterNow(data, Of(group));
    if (then) then();
  });
}

Collectives::Ticket Collectives::StartFillFromAll(std::span<std::byte> all, Group group) {
  if (size_of(group) == 1) return 0;
  return Start("gathering weights", [this, all, group] {
    Transport& transport = Of(group);
    const size_t part = all.size() / static_cast<size_t>(transport.size());
    AllGatherNow(all.subspan(part * static_cast<size_t>(transport.rank()), part), all, transport);
  });
}

// An operation of a group of one rank has no ticket.
void Collectives::AllReduce(std::span<float> data, Group group) {
  if (size_of(group) > 1) WaitFor(StartAllReduce(data, group));
}

void Collectives::ReduceScatter(std::span<float> data, Group group) {
  if (size_of(group) > 1) WaitFor(StartReduceScatter(data, group));
}

void Collectives::AllGather(std::span<const std::byte> mine, std::span<std::byte> all,
                            Group group) {
  TANDEM_CHECK(all.size() == mine.size() * static_cast<size_t>(size_of(group)));
  if (size_of(group) == 1) {
    if (!mine.empty()) std::memcpy(all.data(), mine.data(), mine.size());
    return;
  }
  Do("gathering from all ranks", [&, group] { AllGatherNow(mine, all, Of(group)); });
}

std::vector<double> Collectives::AllGather(std::span<const double> mine, Group group) {
  std::vector<double> all(mine.size() * static_cast<size_t>(size_of(group)));
  AllGather(std::as_bytes(mine), std::as_writable_bytes(std::span(all)), group);
  return all;
}

std::vector<std::string> Collectives::AllGatherText(const std::string& mine) {
  const double length = static_cast<double>(mine.size());
  const std::vector<double> lengths = AllGather({&length, 1});
  const auto longest = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::byte> part(longest);
  if (!mine.empty()) std::memcpy(part.data(), mine.data(), mine.size());
  std::vector<std::byte> all(longest * static_cast<size_t>(size_));
  AllGather(part, all);
  std::vector<std::string> texts;
  for (size_t r = 0; r < lengths.size(); ++r) {
    texts.emplace_back(reinterpret_cast<const char*>(all.data()) + r * longest,
                       static_cast<size_t>(lengths[r]));
  }
  return texts;
}

void Collectives::Broadcast(std::span<std::byte> data, int root) {
  Do("a broadcast", [this, data, root] {
    const auto n = static_cast<int64_t>(data.size());
    for (int64_t at = 0; at < n; at += Transport::kMostBytesPerCall) {
      transport_->Broadcast(data.data() + at, std::min(Transport::kMostBytesPerCall, n - at), root);
    }
  });
}

std::string Collectives::BroadcastText(const std::string& text, int root) {
  auto length = static_cast<int64_t>(text.size());
  Broadcast(std::as_writable_bytes(std::span(&length, 1)), root);
  std::string all = rank_ == root ? text : std::string(static_cast<size_t>(length), '\0');
  Broadcast(std::as_writable_bytes(std::span(all.data(), all.size())), root);
  return all;
}

bool Collectives::AnyRank(bool mine) {
  const double value = mine ? 1 : 0;
  for (const double one : AllGather({&value, 1})) {
    if (one != 0) return true;
  }
  return false;
}

void Collectives::Barrier() {
  Do("a barrier", [this] { transport_->Barrier(); });
}

}  // namespace tandem::training
