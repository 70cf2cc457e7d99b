#include "sworker/scheduler/admission.h"

#include <optional>

#include "sworker/scheduler/placement.h"

namespace fastdecode {
namespace {

// How many waiting requests behind a head that cannot start are looked at in one plan.
constexpr int kLookahead = 32;

}  // namespace

std::vector<PrefillItem> Admission::Plan() {
  std::vector<PrefillItem> items;
  std::optional<Reservation> reservation;  // set once the head has found no room
  int64_t tokens = 0;
  int looked_at = 0;
  for (auto next = books_.waiting.begin(); next != books_.waiting.end();) {
    Sequence& s = *next++->second;
    if (books_.in_flight >= books_.options.max_batch) break;
    if (!items.empty() && tokens + s.prefill_tokens > books_.options.prefill_tokens_per_step) break;
    if (!books_.FitsLive(s)) continue;  // its R-worker is away: nobody can delay it
    if (reservation && ++looked_at > kLookahead) break;
    const bool paced = pacer_.Paces(books_);
    const std::optional<Place> place = FindPlace(books_, s, paced);
    if (place && reservation) {
      // Forecasts slip, since prefills take their time: the count makes sure that the head's
      // R-worker is kept free for it in the end.
      const bool beside_head = place->rworker == reservation->rworker();
      if (beside_head && passed_by_ >= books_.options.max_batch) continue;
      if (!reservation->Allows(s, *place)) continue;
      passed_by_ += beside_head;
    }
    if (place) {
      books_.TakePlace(s, place->rworker, place->mini_batch);
      if (paced) books_.pair_of(s).start_tokens -= 1;
      items.push_back({s.id, s.rworker});
      tokens += s.prefill_tokens;
      continue;
    }
    if (reservation) continue;
    if (paced && FindPlace(books_, s, false)) break;  // there is room, but it is not its turn yet
    const bool held = held_head_ == s.id;
    reservation.emplace(books_, s, held && books_.rworker(held_rworker_).live ? held_rworker_ : -1);
    if (!held) passed_by_ = 0;
    held_head_ = s.id;
    held_rworker_ = reservation->rworker();
  }
  pacer_.Trim(books_);
  return items;
}

}  // namespace fastdecode
