#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

#include "engine/base/ids.h"

namespace tandem::engine {

// The queue of requests that have not had a place yet. Clients take turns; a client's own requests
// go by priority, lower first, then by arrival. No priority moves a request ahead of another
// client's: a client that asks for -2^31 only reorders its own work.
//
// Turns follow start-time fair queueing (Goyal, Vin, Cheng 1996) with one choice of a request as
// the unit. A client with queued requests has a start number, and the lowest goes next. A request
// of n choices moves its client's next start number by n. An idle client starts at the number that
// went last, so idle time gives no credit.
class TurnTaking {
 public:
  struct Entry {
    RequestId request;
    uint64_t client = 0;
    int priority = 0;
    uint64_t arrival = 0;  // different for each request
    int n = 1;             // choices
  };

  // Adds the entry to its client's queue. Strong exception guarantee.
  void Queue(const Entry& entry);
  // Removes the entry without giving it a place. REQUIRES: it is queued.
  void Leave(const Entry& entry);
  // The request whose turn it is; nullopt when none is queued.
  std::optional<RequestId> Next() const;
  // Gives Next() its place.
  void Admit();

  size_t size() const { return size_; }
  size_t num_clients() const { return clients_.size(); }  // remembered clients

 private:
  struct GoesFirst {
    bool operator()(const Entry& a, const Entry& b) const {
      if (a.priority != b.priority) return a.priority < b.priority;
      return a.arrival < b.arrival;
    }
  };
  struct Client {
    std::set<Entry, GoesFirst> queue;
    uint64_t start = 0;  // of its next request
    uint64_t since = 0;  // orders clients with equal start numbers: the longest waiting goes first
  };
  struct Turn {
    uint64_t start = 0;
    uint64_t since = 0;
    uint64_t client = 0;
    auto operator<=>(const Turn&) const = default;
  };
  static Turn TurnOf(uint64_t id, const Client& client) { return {client.start, client.since, id}; }
  void ForgetWhenEmpty();

  std::unordered_map<uint64_t, Client> clients_;  // cleared when nothing is queued
  std::set<Turn> turns_;                          // of clients with queued requests
  uint64_t now_ = 0;                              // the start number that went last
  uint64_t turns_given_ = 0;
  size_t size_ = 0;
};

}  // namespace tandem::engine
