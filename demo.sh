#!/usr/bin/env bash
# The main job from end to end, as `make demo` runs it: install, make games, roll out groups, fit a gate, ask in SQL.
# Interrupted, it goes on where it stopped when it is started again.
set -euo pipefail
cd "$(dirname "$0")"

GAMES=runs/demo-games
RUN=runs/demo
GROUPS_WANTED=16
SR=.venv/bin/sr
NO_GATE=3 # exit code of sr calibrate

times=()

stage() { # NAME COMMAND...: note the wall time of a stage
    local name=$1 begun=$SECONDS
    shift
    printf '\n=== %s\n' "$name"
    "$@"
    times+=("$(printf '%-10s %4d s' "$name" $((SECONDS - begun)))")
}

run() { # COMMAND...: say it, and run it
    echo "\$ $*"
    "$@"
}

calibrate() { # a run in which no gate is precise enough is an answer, not a failure
    local code=0
    run "$SR" calibrate "$RUN" --target-precision 0.9 || code=$?
    case $code in
        0) ;;
        "$NO_GATE") echo "(exit code $code: an ordinary answer on so few groups; the demo goes on)" ;;
        *) return "$code" ;;
    esac
}

ask() { # QUESTION SQL
    printf '\n%s\n$ %s query %s "%s"\n' "$1" "$SR" "$RUN" "$2"
    "$SR" query "$RUN" "$2"
}

query() {
    ask "How often is each task type solved?" "
SELECT task_type, count(DISTINCT group_id) AS groups, count(*) AS trajectories, count(*) FILTER (won) AS won,
       round(avg(length), 1) AS mean_steps
FROM trajectories JOIN groups USING (group_id) GROUP BY task_type ORDER BY task_type"
    ask "How was the policy's reply matched to a command of the game?" "
SELECT match, count(*) AS steps FROM steps GROUP BY match ORDER BY steps DESC"
    ask "Do groups that teach nothing agree more with themselves after 10 steps?" "
SELECT CASE WHEN list_min(rewards) = 1 THEN 'all succeed' WHEN list_max(rewards) = 0 THEN 'all fail' ELSE 'mixed' END
           AS outcome,
       count(*) AS groups, round(avg(prefix_distance), 3) AS mean_distance,
       round(stddev_samp(prefix_distance), 3) AS standard_deviation
FROM prefix_distance(10) JOIN groups USING (group_id) GROUP BY outcome ORDER BY outcome"
}

say_how_to_go_on() {
    if (($? != 0)); then
        printf '\nthe demo has stopped; make demo goes on where it was\n' >&2
    fi
}
trap say_how_to_go_on EXIT

stage install run make --no-print-directory install
stage games run "$SR" games make "$GAMES" --train 0 --valid-seen "$GROUPS_WANTED" --valid-unseen 0
stage collect run "$SR" collect "$RUN" --games "$GAMES/valid_seen" --groups "$GROUPS_WANTED" --group-size 8
stage calibrate calibrate
stage query query

printf '\n=== wall time\n'
printf '%s\n' "${times[@]}"
printf '%-10s %4d s\n' total "$SECONDS"
printf '\nThe run is in %s; ask it more with: %s query %s "SELECT ..."\n' "$RUN" "$SR" "$RUN"
