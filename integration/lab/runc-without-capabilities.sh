#!/bin/sh
# runc as CRI-O needs it on a machine that gives less than a whole one. Where CAP_SYS_RESOURCE is missing, a negative
# oom_score_adj (guaranteed pods have one) cannot be set, and CRI-O has no setting for that; and CRI-O sets hugetlb limits
# wherever the kernel knows of hugetlb, even with no such hierarchy mounted. Both are taken out of the bundle.
case " $* " in
*" --bundle "*)
    bundle=${*#*--bundle }
    bundle=${bundle%% *}
    sed -i 's/"oomScoreAdj": *-[0-9]*/"oomScoreAdj": 0/; s/"hugepageLimits"/"x-hugepageLimits"/' "$bundle/config.json"
    ;;
esac
exec "${RUNC:-runc}" "$@"
