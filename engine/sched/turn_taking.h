#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>

namespace tandem::engine {

// Numbers that make clients take turns: whoever waits with the lowest number goes first. Start-time
// fair queueing (Goyal, Vin, Cheng 1996) with a choice of a request as the unit: a client's next
// request gets the number behind its last one, but none that has passed already. So of clients that
// all wait, each gets one choice per round; one that was idle has saved up nothing; and the numbers
// of one client rise in the order of its requests.
//
// A number never changes once it is given, so the line that it orders stays sorted.
class TurnTaking {
 public:
  // A request of `n` choices joins the queue: its number.
  uint64_t Queue(int priority, uint64_t client, int n);
  // A queued request got its place.
  void Admitted(int priority, uint64_t turn);
  // A queued request is gone without one.
  void Left(int priority);

  size_t num_lines() const { return lines_.size(); }

 private:
  // Those who wait at one priority. Forgotten when nobody does, so that clients cannot make the
  // server remember every priority they ever named.
  struct Line {
    uint64_t now = 0;  // the highest number that went
    int64_t n_queued = 0;
    std::unordered_map<uint64_t, uint64_t> next;  // by client
  };
  void Leave(std::map<int, Line>::iterator line);

  std::map<int, Line> lines_;
  uint64_t highest_ = 0;  // ever given: a line that begins anew goes on from there
};

}  // namespace tandem::engine
