#include "bench/support/verdict.h"

#include <fmt/format.h>

#include <algorithm>

#include "bench/support/statistics.h"

namespace rdmalloc::bench {
namespace {

constexpr const char* kOurs = "rdmalloc";

// The smallest ratio to glibc that a peer has, 0 for none.
double best_of_peers(const Ratios& ratios, const std::string& program) {
  double best = 0;
  for (const std::string& allocator : ratios.allocators) {
    const double ratio = ratios.at(program, allocator);
    if (allocator != kOurs && ratio > 0 && (best == 0 || ratio < best)) best = ratio;
  }
  return best;
}

Standing best_peer(const Ratios& ratios) {
  Standing best;
  double best_mean = 0;
  for (const std::string& allocator : ratios.allocators) {
    const double mean = ratios.mean(allocator);
    if (allocator == kOurs || mean <= 0 || (best_mean > 0 && mean >= best_mean)) continue;
    best_mean = mean;
    best.name = allocator;
  }
  if (best_mean > 0) best.ratio = ratios.mean(kOurs) / best_mean;
  return best;
}

Standing worst_program(const Ratios& ratios, const std::string& rival) {
  Standing worst;
  for (const std::string& program : ratios.programs) {
    const double theirs = ratios.at(program, rival);
    const double ratio = theirs > 0 ? ratios.at(program, kOurs) / theirs : 0;
    if (ratio > worst.ratio) worst = {program, ratio};
  }
  return worst;
}

}  // namespace

double Ratios::at(const std::string& program, const std::string& allocator) const {
  const auto it = to_glibc.find({program, allocator});
  return it == to_glibc.end() ? 0 : it->second;
}

double Ratios::mean(const std::string& allocator) const {
  std::vector<double> values;
  for (const std::string& program : programs) values.push_back(at(program, allocator));
  if (std::any_of(values.begin(), values.end(), [](double value) { return value <= 0; })) return 0;
  return geometric_mean(values);
}

Verdict judge(const Ratios& ratios, const std::string& rival) {
  Verdict verdict{best_peer(ratios), 0, worst_program(ratios, rival), rival};
  std::vector<double> to_best;
  for (const std::string& program : ratios.programs) {
    const double best = best_of_peers(ratios, program);
    const double ours = ratios.at(program, kOurs);
    if (best <= 0 || ours <= 0) return verdict;
    to_best.push_back(ours / best);
  }
  verdict.to_best_of_each = geometric_mean(to_best);
  return verdict;
}

std::string verdict_text(const Verdict& verdict) {
  std::string text;
  if (verdict.best_peer.ratio > 0)
    text += fmt::format("  rdmalloc to the best single peer of this run, {}: {:.3f}\n",
                        verdict.best_peer.name, verdict.best_peer.ratio);
  if (verdict.to_best_of_each > 0)
    text += fmt::format("  rdmalloc to the best peer of each program: {:.3f}\n",
                        verdict.to_best_of_each);
  if (verdict.worst_program.ratio > 0)
    text += fmt::format("  rdmalloc's worst program against {}: {}, {:.3f}\n", verdict.rival,
                        verdict.worst_program.name, verdict.worst_program.ratio);
  return text;
}

nlohmann::json to_json(const Verdict& verdict) {
  return {{"best_peer", verdict.best_peer.name},
          {"to_best_peer", verdict.best_peer.ratio},
          {"to_best_of_each_program", verdict.to_best_of_each},
          {"rival", verdict.rival},
          {"worst_program", verdict.worst_program.name},
          {"worst_to_rival", verdict.worst_program.ratio}};
}

}  // namespace rdmalloc::bench
