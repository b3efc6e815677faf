#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

#include "engine/base/ids.h"

namespace tandem::engine {

// The queue of requests that never had a place. Clients take turns; a client's own requests go by
// priority, lower first, then in the order of arrival. So no priority moves a request in front of
// another client's: a client that asks for -2^31 only reorders its own work.
//
// Turns follow start-time fair queueing (Goyal, Vin, Cheng 1996) with a choice of a request as the
// unit. A client with queued requests has a start number, and the lowest start number goes next. A
// request of n choices moves its client's next start number n further. A client that was idle
// starts at the number that went last, so it has saved up nothing.
class TurnTaking {
 public:
  struct Entry {
    RequestId request;
    uint64_t client = 0;
    int priority = 0;
    uint64_t arrival = 0;  // different for each request
    int n = 1;             // choices
  };

  // The entry joins its client's queue. Strong exception guarantee.
  void Queue(const Entry& entry);
  // The entry leaves without a place. REQUIRES: it is queued.
  void Leave(const Entry& entry);
  // The request whose turn it is; nothing when none is queued.
  std::optional<RequestId> Next() const;
  // Next() gets its place.
  void Admit();

  size_t size() const { return size_; }
  size_t num_clients() const { return clients_.size(); }  // that it remembers

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
    uint64_t since = 0;  // orders clients with equal start numbers: the longest there goes first
  };
  struct Turn {
    uint64_t start = 0;
    uint64_t since = 0;
    uint64_t client = 0;
    auto operator<=>(const Turn&) const = default;
  };
  static Turn TurnOf(uint64_t id, const Client& client) { return {client.start, client.since, id}; }
  void ForgetWhenEmpty();

  std::unordered_map<uint64_t, Client> clients_;  // all forgotten when nothing is queued
  std::set<Turn> turns_;                          // of clients with queued requests
  uint64_t now_ = 0;                              // the start number that went last
  uint64_t turns_given_ = 0;
  size_t size_ = 0;
};

}  // namespace tandem::engine
