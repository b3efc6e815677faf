#include "training/dist/thread_ranks.h"

#include <cstring>

#include "engine/base/error.h"

namespace tandem::training {

class ThreadRanks::Rank : public Transport {
 public:
  Rank(ThreadRanks& group, int rank) : group_(group), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return group_.size_; }

  void AllToAll(const std::byte* send, std::byte* receive, int64_t bytes) override {
    Exchange(send, [&] {
      for (int r = 0; r < size(); ++r) Copy(Other(r) + rank_ * bytes, receive, r, bytes);
    });
  }
  void AllGather(const std::byte* send, std::byte* receive, int64_t bytes) override {
    Exchange(send, [&] {
      for (int r = 0; r < size(); ++r) Copy(Other(r), receive, r, bytes);
    });
  }
  void Broadcast(std::byte* data, int64_t bytes, int root) override {
    Exchange(data, [&] {
      if (rank_ != root) Copy(Other(root), data, 0, bytes);
    });
  }
  void Barrier() override { group_.Meet(); }
  std::unique_ptr<Transport> Split(int color) override {
    group_.colors_[static_cast<size_t>(rank_)] = color;
    group_.Meet();
    int members = 0;
    int mine = 0;
    for (int r = 0; r < size(); ++r) {
      if (group_.colors_[static_cast<size_t>(r)] != color) continue;
      if (r == rank_) mine = members;
      ++members;
    }
    ThreadRanks& part = group_.Part(color, members);
    group_.Meet();
    return part.Open(mine);
  }
  void Finish() override { group_.Meet(); }
  void Abort() override { group_.Abort(); }

 private:
  template <class Action>
  void Exchange(const std::byte* send, const Action& copy) {
    group_.sent_[static_cast<size_t>(rank_)] = send;
    group_.Meet();
    copy();
    group_.Meet();
  }
  const std::byte* Other(int r) const { return group_.sent_[static_cast<size_t>(r)]; }
  static void Copy(const std::byte* from, std::byte* to, int part, int64_t bytes) {
    if (bytes > 0) std::memcpy(to + part * bytes, from, static_cast<size_t>(bytes));
  }

  ThreadRanks& group_;
  const int rank_;
};

ThreadRanks::ThreadRanks(int size)
    : size_(size), sent_(static_cast<size_t>(size)), colors_(static_cast<size_t>(size)) {}

ThreadRanks& ThreadRanks::Part(int color, int size) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<ThreadRanks>& part = parts_[{round_, color}];
  if (!part) part = std::make_unique<ThreadRanks>(size);
  return *part;
}

std::unique_ptr<Transport> ThreadRanks::Open(int rank) {
  return std::make_unique<Rank>(*this, rank);
}

void ThreadRanks::Meet() {
  std::unique_lock lock(mutex_);
  const int64_t round = round_;
  if (++waiting_ == size_) {
    waiting_ = 0;
    ++round_;
    changed_.notify_all();
  } else {
    changed_.wait(lock, [&] { return round_ != round || aborted_; });
  }
  if (round_ == round && aborted_) {
    throw Error(ErrorCode::kUnavailable, "another rank has ended with an error");
  }
}

void ThreadRanks::Abort() {
  {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (const auto& [key, part] : parts_) part->Abort();
  }
  changed_.notify_all();
}

}  // namespace tandem::training
